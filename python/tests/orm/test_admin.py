"""Django's admin on shards: real pages, as the browser of a superuser asks for them."""

import re

import pytest

pytestmark = pytest.mark.usefixtures("db")

U, V = 3, 12
LIST = "/admin/photos/photo/"


@pytest.fixture
def client(world):
    from django.contrib.admin.models import LogEntry
    from django.contrib.auth.models import User
    from django.test import Client

    LogEntry.objects.all().delete()
    root, _ = User.objects.get_or_create(username="root", is_staff=True, is_superuser=True)
    made = Client()
    made.force_login(root)
    return made


def titles(answer):
    assert answer.status_code == 200
    return [photo.title for photo in answer.context_data["cl"].result_list]


def form(user, title, **more):
    return {"user_id": user, "title": title, "likes": 0, **more}


def test_a_list_is_of_one_key(m, client):
    mine = [m.Photo.objects.create(user_id=U, title=f"p{n}") for n in range(3)]
    # One with another key on the same shard, and one on another shard.
    m.Photo.objects.create(user_id=U + 16, title="neighbour")
    m.Photo.objects.create(user_id=V, title="of another")
    m.Photo.objects.filter(pk=mine[0].pk).update(
        album=m.Album.objects.create(user_id=U, name="Trips")
    )
    nothing = client.get(LIST)
    assert titles(nothing) == []
    assert b"Name a user id: it says on which shard the rows are" in nothing.content
    assert titles(client.get(LIST, {"user_id": U})) == ["p2", "p1", "p0"]
    found = client.get(LIST, {"q": str(U)})
    assert titles(found) == ["p2", "p1", "p0"]
    assert b"Album object" in found.content
    assert titles(client.get(LIST, {"user_id": U, "q": "p1"})) == ["p1"]
    album = m.Album.objects.get(user_id=U)
    assert titles(client.get(LIST, {"album__id__exact": album.pk})) == ["p0"]
    assert titles(client.get(LIST, {"album__id__exact": album.pk, "q": "p1"})) == []
    assert titles(client.get(LIST, {"user_id__exact": V})) == ["of another"]
    for wrong in ("x", "9" * 60, ""):
        assert titles(client.get(LIST, {"q": wrong})) == []
    assert client.get("/admin/photos/tag/", {"q": str(U)}).status_code == 200


def test_a_row_is_added_changed_and_deleted_where_it_belongs(m, client):
    album = m.Album.objects.create(user_id=U, name="Trips")
    tag = m.Tag.objects.create(user_id=U, word="w")
    empty = client.get(f"{LIST}add/", {"user_id": U})
    assert b"Album object" in empty.content
    assert client.get(f"{LIST}add/").status_code == 200
    assert (
        client.post(f"{LIST}add/", form(U, "new", album=album.pk, tags=[tag.pk])).status_code == 302
    )
    photo = m.Photo.objects.filter(user_id=U).get()
    assert (photo.title, photo.album, list(photo.tags.all())) == ("new", album, [tag])
    page = f"{LIST}{photo.pk}/change/"
    assert b"Album object" in client.get(page).content
    assert client.post(page, form(U, "changed", album=album.pk, tags=[tag.pk])).status_code == 302
    assert m.Photo.objects.get(pk=photo.pk).title == "changed"
    assert b"Added." in client.get(f"{LIST}{photo.pk}/history/").content
    assert client.get(f"{LIST}{photo.pk}/delete/").status_code == 200
    assert client.post(f"{LIST}{photo.pk}/delete/", {"post": "yes"}).status_code == 302
    assert not m.Photo.objects.for_key(U).exists()
    # IDs that do not exist find nothing.
    for id in (photo.pk, 2**62, "x"):
        assert client.get(f"{LIST}{id}/change/").status_code == 302


def test_a_mistake_in_a_form_is_shown_and_a_key_that_is_none_saves_nothing(m, client):
    assert client.post(f"{LIST}add/", form("x", "new")).status_code == 200
    assert client.post(f"{LIST}add/", form("", "new")).status_code == 200
    assert not m.Photo.objects.across_shards().exists()


def test_actions_are_for_the_rows_of_the_list(m, client):
    photos = [m.Photo.objects.create(user_id=U, title=f"p{n}") for n in range(3)]
    chosen = {"action": "delete_selected", "_selected_action": [photos[0].pk, photos[2].pk]}
    assert client.post(f"{LIST}?user_id={U}", chosen).status_code == 200
    assert client.post(f"{LIST}?user_id={U}", {**chosen, "post": "yes"}).status_code == 302
    assert [photo.title for photo in m.Photo.objects.for_key(U)] == ["p1"]


def test_a_list_shows_what_its_rows_refer_to_in_other_databases(m, client):
    from django.contrib.auth.models import User
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    user, _ = User.objects.get_or_create(username="writer")
    category = m.Category.objects.create(name="of a list")
    for text in "ab":
        m.Note.objects.create(user=user, text=text)
        album = m.Album.objects.create(user_id=user.pk, name=text)
        m.Photo.objects.create(user_id=user.pk, title=text, album=album, category=category)
    for model, shown in (("note", b">writer<"), ("photo", b">Category object (")):
        with CaptureQueriesContext(connection) as asked:
            listed = client.get(f"/admin/photos/{model}/", {"q": str(user.pk)})
        assert listed.content.count(shown) == 2
        table = "auth_user" if model == "note" else "photos_category"
        assert len([one for one in asked if re.search(rf'"{table}"\."id"\)? IN', one["sql"])]) == 1
    m.Photo.objects.filter(user_id=user.pk).update(category=None)
    category.delete()


def test_a_key_that_is_a_reference_names_the_shard_of_a_page(m, client):
    from django.contrib.auth.models import User

    user, _ = User.objects.get_or_create(username="writer")
    assert (
        client.post("/admin/photos/note/add/", {"user": user.pk, "text": "hello"}).status_code
        == 302
    )
    (note,) = user.notes.all()
    assert client.get("/admin/photos/note/", {"user__id__exact": user.pk}).status_code == 200
    assert b"hello" in client.get(f"/admin/photos/note/{note.pk}/change/").content
    listed = client.get("/admin/photos/note/", {"q": str(user.pk)})
    assert [one.text for one in listed.context_data["cl"].result_list] == ["hello"]


def test_a_row_does_not_go_to_another_shard_by_a_form(m, client):
    photo = m.Photo.objects.create(user_id=U, title="x")
    album, tag = (
        m.Album.objects.create(user_id=U, name="Trips"),
        m.Tag.objects.create(user_id=U, word="w"),
    )
    answer = client.post(f"{LIST}{photo.pk}/change/", form(V, "y", album=album.pk, tags=[tag.pk]))
    assert answer.status_code == 200
    assert b"a row does not change its shard" in answer.content
    assert m.Photo.objects.get(pk=photo.pk).title == "x"
    assert not m.Photo.objects.for_key(V).exists()


def test_rows_within_a_form_have_the_same_key(m, client):
    page = "/admin/photos/album/add/"
    data = form(U, "t", name="new") | {"photos-TOTAL_FORMS": 1, "photos-INITIAL_FORMS": 0}
    row = {"photos-0-title": "t", "photos-0-likes": 0}
    answer = client.post(page, {**data, **row, "photos-0-user_id": V})
    assert answer.status_code == 200
    assert b"will be on shard-3, and this row belongs on shard-12" in answer.content
    assert not m.Album.objects.for_key(U).exists()
    assert client.post(page, {**data, **row, "photos-0-user_id": U}).status_code == 302
    assert m.Album.objects.for_key(U).get().photos.get().title == "t"


def test_rows_within_a_form_get_the_key_that_it_does_not_ask_for(m, client, monkeypatch):
    from django.contrib import admin

    (inline,) = admin.site._registry[m.Album].inlines
    monkeypatch.setattr(inline, "fields", ["title", "likes"])
    for at, page in enumerate(("add/", None)):
        album = m.Album.objects.for_key(U).first()
        count = {"photos-TOTAL_FORMS": at + 1, "photos-INITIAL_FORMS": at}
        rows = {f"photos-{n}-{name}": 0 for n in range(at + 1) for name in ("title", "likes")}
        old = album and {"photos-0-id": album.photos.get().pk, "photos-0-album": album.pk}
        data = form(U, "t", name="new") | count | rows | (old or {})
        answer = client.post(f"/admin/photos/album/{page or f'{album.pk}/change/'}", data)
        assert answer.status_code == 302
        assert m.Photo.objects.filter(album__name="new", user_id=U).count() == at + 1


def test_save_as_new_writes_all_of_a_row_of_another_key_in_one_transaction(m, client, monkeypatch):
    from django.contrib import admin
    from django.test import override_settings

    monkeypatch.setattr(admin.site._registry[m.Album], "save_as", True)
    album = m.Album.objects.create(user_id=U, name="old")
    photo = album.photos.create(title="t")
    data = form(V, "t", name="new") | {"photos-TOTAL_FORMS": 1, "photos-INITIAL_FORMS": 1}
    row = {"photos-0-id": photo.pk, "photos-0-title": "t", "photos-0-likes": 0}
    data |= row | {"photos-0-user_id": V, "_saveasnew": 1}
    page = f"/admin/photos/album/{album.pk}/change/"
    with override_settings(PGSHARD_UNCOVERED_WRITES="error"):
        with monkeypatch.context() as patch:
            patch.setattr(m.Photo, "save", lambda *_, **__: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                client.post(page, data)
        assert not m.Album.objects.for_key(V).exists()
        assert client.post(page, data).status_code == 302
    assert m.Album.objects.for_key(V).get().photos.get().title == "t"
    assert m.Album.objects.for_key(U).get() == album


def test_a_field_that_completes_asks_on_the_shard_of_its_page(m, client, monkeypatch):
    from django.contrib import admin

    monkeypatch.setattr(admin.site._registry[m.Photo], "autocomplete_fields", ["album"])
    mine = [m.Album.objects.create(user_id=U, name=name) for name in ("Trips", "Work")]
    m.Album.objects.create(user_id=V, name="Trips")
    photo = m.Photo.objects.create(user_id=U, title="x", album=mine[1])

    def offered(term, **more):
        asked = {"term": term, "app_label": "photos", "model_name": "photo", "field_name": "album"}
        answer = client.get("/admin/autocomplete/", {**asked, **more})
        assert answer.status_code == 200
        return [int(one["id"]) for one in answer.json()["results"]]

    page = client.get(f"{LIST}{photo.pk}/change/").content.decode()
    assert 'data-ajax--url="/admin/autocomplete/?shard=shard-3"' in page
    assert "Album object" in page
    assert 'data-ajax--url="/admin/autocomplete/"' in client.get(f"{LIST}add/").content.decode()
    assert offered("tri", shard="shard-3") == [mine[0].pk]
    assert offered("", shard="shard-3") == [one.pk for one in mine]
    assert offered("tri") == offered("tri", shard="default") == []
    assert offered(f"{U}") == [one.pk for one in mine]
    assert offered(f"{U} wor") == [mine[1].pk]


def test_the_links_of_a_filter_name_the_key(m, client):
    from django.contrib.auth.models import User

    user, _ = User.objects.get_or_create(username="writer")
    user.notes.create(text="hello")
    for name in ("user", "user_id", "user__exact", "user__id__exact", "user__pk"):
        found = client.get("/admin/photos/note/", {name: user.pk})
        assert [one.text for one in found.context_data["cl"].result_list] == ["hello"], name


def test_a_page_of_a_row_whose_primary_key_says_no_shard_names_the_shard(m, client):
    from django.db import connections
    from kinds import models as kinds

    for user in (U, V):
        with connections[f"shard-{user}"].cursor() as cursor:
            cursor.execute("TRUNCATE {shard}.kinds_num, {shard}.kinds_own CASCADE")
    nums = [kinds.Num.objects.create(id=7, user_id=user, name=f"of {user}") for user in (U, V)]
    owns = [kinds.Own.objects.create(user_id=user, name=f"of {user}") for user in (U, V)]
    for user, num, own in zip((U, V), nums, owns):
        listed = client.get("/admin/kinds/num/", {"user_id": user}).content.decode()
        (link,) = set(re.findall(r'href="([^"]*/kinds/num/7/change/[^"]*)"', listed))
        link = link.replace("&amp;", "&")
        assert f"shard=shard-{user}" in link
        page = client.get(link)
        assert page.context_data["original"] == num
        assert client.post(link, {"user_id": user, "name": "new"}).status_code == 302
        num.refresh_from_db()
        assert num.name == "new"
        assert client.get(f"/admin/kinds/own/{user}/change/").context_data["original"] == own
    # Without the shard it is nobody's.
    for address in ("7/change/", "7/change/?shard=shard-99", "7/delete/"):
        assert client.get(f"/admin/kinds/num/{address}").status_code == 302
        assert client.post(f"/admin/kinds/num/{address}", {"post": "yes"}).status_code == 302
    assert [kinds.Num.objects.for_key(user).count() for user in (U, V)] == [1, 1]


def test_a_name_that_is_translated_stands_in_the_title(m, client, monkeypatch):
    from django.utils.translation import gettext_lazy

    monkeypatch.setattr(m.Photo._meta.get_field("user_id"), "verbose_name", gettext_lazy("User"))
    assert "Name a User:" in client.get(LIST).content.decode()


def test_a_link_with_a_shard_lists_its_rows(m, client, p):
    for user in (U, U + 16, V):
        m.Photo.objects.create(user_id=user, title=f"of {user}")
    where = p.alias_of_key(U)
    found = client.get(LIST, {"shard": where})
    assert sorted(titles(found)) == [f"of {U + 16}", f"of {U}"]
    assert titles(client.get(LIST, {"shard": where, "q": f"of {U}"})) == [f"of {U}"]
    assert f"shard={where}" in client.get(LIST, {"shard": where, "o": "1"}).content.decode()
    assert titles(client.get(LIST, {"shard": "shard-99"}, follow=True)) == []


def test_the_pages_of_a_row_whose_primary_key_says_no_shard_link_to_each_other(m, client, p):
    from django.db import connections
    from kinds import models as kinds

    where = p.alias_of_key(V)
    with connections[where].cursor() as cursor:
        cursor.execute("TRUNCATE {shard}.kinds_num CASCADE")
    kinds.Num.objects.create(id=7, user_id=V, name="x")
    page = client.get(f"/admin/kinds/num/7/change/?shard={where}").content.decode()
    for name in ("history", "delete"):
        (link,) = set(re.findall(rf'href="([^"]*/kinds/num/7/{name}/[^"]*)"', page))
        assert client.get(link.replace("&amp;", "&")).status_code == 200, link
    answer = client.post(
        f"/admin/kinds/num/7/change/?shard={where}",
        {"user_id": V, "name": "y", "_continue": "1"},
    )
    assert client.get(answer["Location"]).context_data["original"].name == "y"
    answer = client.post(f"/admin/kinds/num/7/change/?shard={where}", {"user_id": V, "name": "z"})
    shown = client.get(answer["Location"]).context_data["cl"].result_list
    assert [one.name for one in shown] == ["z"]


def test_a_usual_admin_of_a_sharded_model_is_reported(m):
    from django.contrib import admin

    from pgshard.django import checks

    assert checks.check_admin() == []
    site = admin.AdminSite("usual")
    site.register(m.Photo)
    (found,) = checks.check_admin()
    assert (found.id, found.hint) == (
        "pgshard.W004",
        "class ModelAdmin(pgshard.django.admin.ShardedModelAdmin)",
    )
    site.unregister(m.Photo)
