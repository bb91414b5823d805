"""The paper's de-anonymisation attacks (Sec. 4.1, App. H, App. I.4): who has which item at another party.

    adversaries -> training -> seen -> matching | subset | gradients -> scores

Fake users are planted at a target party, each rating one item; what the exchange or the gradients show of them is compared with
what they show of honest users. `mount` mounts every attack of a method on a finished run.

    tap -> recovery | stacking | rounds | ridge | collusion | curious | membership | sketch

are attacks the paper does not try, on messages as they were sent; `stronger` mounts them.
"""
