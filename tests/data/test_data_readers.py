"""Each publisher's layout and plain tables, on small files written here."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from verfedgnn.core.errors import DataError
from verfedgnn.data import publishers, read_parties, read_ratings


def rows(ratings):
    """A table as a set of (user, item, rating)."""
    users, items = ratings.user_ids[ratings.user].tolist(), ratings.item_ids[ratings.item].tolist()
    return set(zip(users, items, ratings.rating.tolist(), strict=True))


def put(path, content, *, packed=False):
    data = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_movielens_100k(tmp_path, packed):
    put(
        tmp_path / ("u.data.gz" if packed else "u.data"),
        "10\t2\t3\t881250949\n9\t1\t5\t881250950\n",
        packed=packed,
    )
    comedy, action = ("|".join("1" if k in flags else "0" for k in range(19)) for flags in ({5}, {1, 5}))
    films = f"1|Amélie (2001)|01-Jan-1995||http://x|{comedy}\n2|Heat|||http://y|{action}\n"
    put(tmp_path / "u.item", films.encode("latin-1"))
    ratings = read_ratings(tmp_path)
    assert rows(ratings) == {("10", "2", 3.0), ("9", "1", 5.0)}
    assert ratings.user_ids.tolist() == ["9", "10"]  # as numbers, not as text
    assert ratings.titles.tolist() == ["Amélie (2001)", "Heat"]
    assert ratings.columns["genre"].tolist() == ["Comedy", "Action"]
    assert ratings.scale == (1, 5)
    assert ratings.time[ratings.item == 1].tolist() == [881250949]


@pytest.mark.parametrize("packed", [False, True])
def test_movielens_1m(tmp_path, packed):
    data = "1::11::5::978300760\n2::7::3::978302109\n"
    file = put(tmp_path / ("ratings.dat.gz" if packed else "ratings.dat"), data, packed=packed)
    movies = "7::Dracula: Dead and Loving It (1995)::Comedy|Horror\n11::Misérables, Les (1995)::Drama\n"
    put(tmp_path / "movies.dat", movies.encode("latin-1"))
    for path in (tmp_path, file):
        ratings = read_ratings(path)
        assert rows(ratings) == {("1", "11", 5.0), ("2", "7", 3.0)}
        assert ratings.titles.tolist() == ["Dracula: Dead and Loving It (1995)", "Misérables, Les (1995)"]
        assert ratings.columns["genre"].tolist() == ["Comedy", "Drama"]


@pytest.mark.parametrize("packed", [False, True])
def test_movielens_csv(tmp_path, packed):
    suffix = ".csv.gz" if packed else ".csv"
    ratings_csv = "userId,movieId,rating,timestamp\n1,31,2.5,1260759144\n7,5,4.0,1260759179\n"
    put(tmp_path / f"ratings{suffix}", ratings_csv, packed=packed)
    movies = 'movieId,title,genres\n5,"Father, The (1995)",Comedy|Drama\n31,Été,(no genres listed)\n'
    put(tmp_path / f"movies{suffix}", movies, packed=packed)
    ratings = read_ratings(tmp_path)
    assert rows(ratings) == {("1", "31", 2.5), ("7", "5", 4.0)}
    assert ratings.titles.tolist() == ["Father, The (1995)", "Été"]
    assert ratings.columns["genre"].tolist() == ["Comedy", ""]
    assert ratings.scale == (0.5, 5)


def test_movielens_1m_as_csv_with_other_names(tmp_path):
    put(tmp_path / "ratings.csv", "user_id,movie_id,rating,timestamp\n1,31,2,1260759144\n")
    put(tmp_path / "movies.csv", "movie_id,title,genres\n31,Heat,Action\n")
    ratings = read_ratings(tmp_path)
    assert (ratings.scale, ratings.titles.tolist()) == ((1, 5), ["Heat"])


BX = '"User-ID";"ISBN";"Book-Rating"\r\n'


@pytest.mark.parametrize("packed", [False, True])
def test_bookcrossing(tmp_path, packed):
    suffix = ".csv.gz" if packed else ".csv"
    lines = (
        BX
        + '"1";"034545104X";"0"\r\n"1";"0155061224";"5"\r\n"2";"\\"0432534220\\"";"6"\r\n"2";"9\xff";"10"\r\n'
    )
    put(tmp_path / f"BX-Book-Ratings{suffix}", lines.encode("latin-1"), packed=packed)
    books = (
        '"ISBN";"Book-Title";"Book-Author"\r\n"0155061224";"Of \\"Mice\\"; &amp; Men";"J"\r\n"broken";"line\r\n'[
            :-2
        ]
        + '";"a";"b";"c"\r\n'
        '"9\xff";"Caf\xe9";"K"\r\n'
    )
    put(tmp_path / f"BX-Books{suffix}", books.encode("latin-1"), packed=packed)
    ratings = read_ratings(tmp_path)
    assert rows(ratings) == {("1", "0155061224", 5.0), ("2", '"0432534220"', 6.0), ("2", "9ÿ", 10.0)}
    titles = dict(zip(ratings.item_ids.tolist(), ratings.titles.tolist(), strict=True))
    assert titles == {"0155061224": 'Of "Mice"; & Men', '"0432534220"': "", "9ÿ": "Café"}
    assert ratings.scale == (1, 10)
    assert ratings.notes[0] == "1 implicit row (rating 0) left out"


def test_bookcrossing_subset_breaks_ties_by_id(tmp_path, monkeypatch):
    monkeypatch.setattr(publishers, "PAPER_SUBSET", (3, 2))
    pairs = [("1", "a"), ("1", "b"), ("2", "a"), ("2", "c"), ("3", "d"), ("3", "e"), ("4", "a")]
    text = BX + "".join(f'"{user}";"{item}";"7"\r\n' for user, item in pairs)
    file = put(tmp_path / "BX-Book-Ratings.csv", text)
    ratings = read_ratings(file)
    # Users 1, 2, 3 have two each; then a has two ratings and b, c, d, e one: b by id. User 3 is left with none.
    assert rows(ratings) == {("1", "a", 7.0), ("1", "b", 7.0), ("2", "a", 7.0)}
    assert ratings.user_ids.tolist() == ["1", "2"]
    assert ratings.notes[-1].endswith("3 of 7 ratings; dropped 1 user left without a rating")


@pytest.mark.parametrize("packed", [False, True])
def test_csv_with_titles_and_categories(tmp_path, packed):
    text = (
        '\ufeff"user",item, rating,time,title,category\n007,x,4,2020-01-01,"Röst, dark\nand ""fine""",food\n'
        "7, x,5,2020-01-02,,food\n7,y,1,2020-01-03,Tea,drink\n"
    )
    ratings = read_ratings(put(tmp_path / ("t.csv.gz" if packed else "t.csv"), text, packed=packed))
    assert rows(ratings) == {("007", "x", 4.0), ("7", "x", 5.0), ("7", "y", 1.0)}
    assert ratings.titles.tolist() == ['Röst, dark\nand "fine"', "Tea"]
    assert ratings.columns["category"].tolist() == ["food", "drink"]
    assert ratings.time.tolist() == [1577836800, 1577923200, 1578009600]
    assert ratings.scale == (1, 5)
    assert ratings.name == "t"


@pytest.mark.parametrize(("name", "separator"), [("t.tsv", "\t"), ("t.csv", ";"), ("t.txt", "|"), ("t", ",")])
def test_delimiters(tmp_path, name, separator):
    text = "userId,movieId,stars\n1,2,3.5\n".replace(",", separator)
    assert rows(read_ratings(put(tmp_path / name, text))) == {("1", "2", 3.5)}


def test_named_columns_and_latin_1(tmp_path):
    file = put(tmp_path / "t.csv", "who,what,how,shop,name\nJosé,1,2,Ä,x\n".encode("latin-1"))
    columns = {"user": "who", "item": "what", "rating": "how", "shop": "shop"}
    ratings = read_ratings(file, columns=columns, encoding="latin-1")
    assert rows(ratings) == {("José", "1", 2.0)}
    assert ratings.columns["shop"].tolist() == ["Ä"]
    assert ratings.titles.tolist() == ["x"]


def test_utf_16(tmp_path):
    file = put(tmp_path / "t.csv", "user,item,rating\né,1,2\n".encode("utf-16"))
    with pytest.raises(DataError, match=r'text in UTF-16; read it with encoding="utf-16"'):
        read_ratings(file)
    assert rows(read_ratings(file, encoding="utf-16")) == {("é", "1", 2.0)}


def test_parquet(tmp_path):
    table = pa.table(
        {
            "user_id": pa.array([3, 20], pa.int64()),
            "item_id": pa.array(["b", "a"]).dictionary_encode(),
            "rating": pa.array([1, 2], pa.int8()),
            "timestamp": pa.array([1_600_000_000_000, 1_600_000_001_000]),
            "brand": ["x", "y"],
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    ratings = read_ratings(tmp_path / "t.parquet", keep=["brand"])
    assert rows(ratings) == {("3", "b", 1.0), ("20", "a", 2.0)}
    assert ratings.time.tolist() == [1_600_000_000, 1_600_000_001]
    assert ratings.notes == ("times were read as milliseconds",)
    assert ratings.columns["brand"].tolist() == ["y", "x"]
    assert [party.name for party in read_parties(tmp_path / "t.parquet", by="brand")] == ["x", "y"]


def test_parquet_with_integer_ids_as_floats(tmp_path):
    pq.write_table(
        pa.table({"user": [1.0, 2.0], "item": ["a", "b"], "rating": [1.0, 2.0]}), tmp_path / "t.parquet"
    )
    assert read_ratings(tmp_path / "t.parquet").user_ids.tolist() == ["1", "2"]


def test_inter_with_types_drops_repeats(tmp_path):
    text = "user_id:token\titem_id:token\trating:float\nA\t1\t5.0\nA\t1\t3.0\nB\t2\t4\n"
    ratings = read_ratings(put(tmp_path / "shop.inter", text))
    assert rows(ratings) == {("A", "1", 5.0), ("B", "2", 4.0)}
    assert ratings.notes == ("1 row repeats a (user, item) pair: kept the first",)


def test_each_table_of_a_folder_is_a_party(tmp_path):
    put(tmp_path / "books.csv", "user,item,rating\n1,a,5\n2,b,3\n")
    put(tmp_path / "films.tsv", "user\titem\trating\n2\tc\t1\n3\td\t2\n")
    assert [party.name for party in read_parties(tmp_path)] == ["books", "films"]
    assert [party.ratings.n_users for party in read_parties(tmp_path, users="all")] == [1, 1]
    with pytest.raises(DataError, match=r"has several tables; give the path of one: books\.csv, films\.tsv"):
        read_ratings(tmp_path)


def test_large_file_in_several_blocks(tmp_path):
    n = 400_000
    user, item = np.arange(n) % 1000, np.arange(n) // 1000
    lines = [f"user-number-{u},item-number-{i},{(u + i) % 5 + 1}\n" for u, i in zip(user, item, strict=True)]
    ratings = read_ratings(put(tmp_path / "t.csv.gz", "user,item,rating\n" + "".join(lines), packed=True))
    assert (len(ratings), ratings.n_users, ratings.n_items) == (n, 1000, 400)
    number = np.char.rpartition(ratings.user_ids, "-")[:, 2].astype(int)
    assert (number[ratings.user] == user).all()


def test_names_are_looked_up_in_the_data_folder(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    put(tmp_path / "mine" / "t.csv", "user,item,rating\n1,a,5\n")
    monkeypatch.setenv("VERFEDGNN_DATA", str(tmp_path))
    monkeypatch.chdir("/")
    assert rows(read_ratings("mine")) == {("1", "a", 5.0)}
