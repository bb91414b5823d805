"""De-anonymisation attacks: who has which item at another party, who has ratings there, which ratings were
trained on.

The paper's attacks (Sec. 4.1, App. H, App. I.4) plant fake users at a target party and compare what the
exchange or the gradients show of them and of honest users. `mount_paper_attacks` mounts them on a finished
run:

    adversaries -> training -> run_view -> matching | subset_search -> attack_scores

The other attacks read messages as they were sent, from a recorded federation:

    item_attack           a party, or all but one colluding   which items users have at the target
    overlap_attack        a party                             which of its own users are at other parties
    coordinator_attack    the coordinator                     who has ratings at which party
    membership_inference  an outsider with the final model    which ratings trained it
"""
