"""Products with attributes and categories, written as the dashboard and the importer do."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from oscar.apps.catalogue.categories import create_from_breadcrumbs
from oscar.core.loading import get_model

from pgembed_django import search, sources
from pgembed_django.declaration import specs
from pgembed_django.models import Job
from tests.packages.with_oscar.models import Shelf

pytestmark = [
    pytest.mark.django_db,
    # The package calls treebeard's former names.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

Product = get_model("catalogue", "Product")
Category = get_model("catalogue", "Category")
Attribute = get_model("catalogue", "ProductAttribute")
OptionGroup = get_model("catalogue", "AttributeOptionGroup")
Option = get_model("catalogue", "AttributeOption")


@pytest.fixture
def kind() -> Any:
    """A class of products, with an attribute of each type."""
    kind = get_model("catalogue", "ProductClass").objects.create(name="Rod")
    colours = OptionGroup.objects.create(name="Colours")
    for colour in ("red", "blue"):
        colours.options.create(option=colour)
    for name in ("text", "integer", "boolean", "float", "richtext", "date", "datetime"):
        kind.attributes.create(name=name.title(), code=f"{name}_value", type=name)
    for name in ("option", "multi_option"):
        kind.attributes.create(
            name=name.title(), code=f"{name}_value", type=name, option_group=colours
        )
    return kind


@pytest.fixture
def product(kind, run_jobs) -> Any:
    product = Product(title="Trout rod", description="For rivers", product_class=kind)
    product.attr.text_value = "carbon"
    product.save()
    product.categories.add(create_from_breadcrumbs("Fishing > Rods"))
    run_jobs()
    return product


def passages(label: str = "catalogue.ProductEmbedding") -> list[str]:
    chunks = apps.get_model(label).objects
    return list(chunks.order_by("source_id").values_list("passage", flat=True))


def test_the_triggers_are_in_the_migrations_of_the_project():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT tgrelid::regclass::text FROM pg_trigger "
            "WHERE tgname LIKE 'pgtrigger_pgembed%' AND tgrelid::regclass::text LIKE 'catalogue%'"
        )
        tables = {table.removeprefix("catalogue_") for [table] in cursor}

    assert tables == {
        "attributeoption",
        "category",
        "product",
        "productattribute",
        "productattributevalue",
        "productattributevalue_value_multi_option",
        "productcategory",
    }


def test_a_product_is_found_by_its_attributes_and_categories(product):
    assert passages() == ["Trout rod\nFor rivers\nRods\nText: carbon"]
    for query in ("trout", "rivers", "rods", "carbon"):
        assert [hit.pk for hit in search(Product.objects.public(), query)] == [product.pk]


@pytest.mark.parametrize(
    ("name", "value", "stored"),
    [
        ("text", "bamboo", "Text: bamboo"),
        ("integer", 3, "Integer: 3"),
        ("boolean", True, "Boolean: Yes"),
        ("float", 1.5, "Float: 1.5"),
        ("richtext", "<p>light</p>", "Richtext: light"),
        ("date", dt.date(2026, 1, 2), "Date: 2026-01-02"),
        ("datetime", dt.datetime(2026, 1, 2, tzinfo=dt.UTC), "Datetime: 2026-01-02 00:00:00+00:00"),
        ("option", ["red"], "Option: red"),
        ("multi_option", ["blue"], "Multi_Option: blue"),
    ],
)
def test_each_type_of_attribute_is_part_of_the_text(product, run_jobs, name, value, stored):
    if "option" in name:
        options = list(Option.objects.filter(option__in=value).order_by("pk"))
        value = options if name == "multi_option" else options[0]

    setattr(product.attr, f"{name}_value", value)
    product.save()
    run_jobs()

    assert stored in passages()[0].split("\n")
    setattr(product.attr, f"{name}_value", None)
    product.save()
    run_jobs()
    assert stored not in passages()[0].split("\n")


def test_renamed_attributes_options_and_categories(product, run_jobs):
    product.attr.option_value = Option.objects.get(option="red")
    product.attr.multi_option_value = Option.objects.filter(option="blue")
    product.save()
    run_jobs()

    Attribute.objects.filter(code="text_value").update(name="Made of")
    Option.objects.filter(option="red").update(option="scarlet")
    Option.objects.filter(option="blue").update(option="navy")
    rods = Category.objects.get(name="Rods")
    rods.name = "Poles"
    rods.save()
    run_jobs()

    assert passages()[0].split("\n")[2:] == [
        "Poles",
        "Made of: carbon",
        "Multi_Option: navy",
        "Option: scarlet",
    ]


def test_products_that_change_categories_or_are_hidden(product, run_jobs):
    product.categories.set([create_from_breadcrumbs("Fishing > Gifts")])
    run_jobs()
    assert passages() == ["Trout rod\nFor rivers\nGifts\nText: carbon"]

    Category.objects.get(name="Fishing").delete()  # and all below it
    run_jobs()
    assert passages() == ["Trout rod\nFor rivers\nText: carbon"]

    product.is_public = False
    product.save()
    assert passages() == []
    assert list(search(Product, "trout")) == []


def test_a_child_has_the_title_of_its_parent(product, run_jobs):
    product.structure = Product.PARENT
    product.save()
    Product.objects.create(structure=Product.CHILD, parent=product, description="Short")
    run_jobs()
    assert passages()[1] == "Trout rod\nShort"

    product.title = "Salmon rod"
    product.save()
    run_jobs()
    assert passages()[1] == "Salmon rod\nShort"


def test_an_imported_catalogue_is_embedded(tmp_path, run_jobs):
    path = tmp_path / "catalogue.csv"
    path.write_text("Rod,Fishing > Rods,1,Trout rod,For rivers\nReel,Fishing > Reels,2,Reel,NULL\n")

    call_command("oscar_import_catalogue", str(path))
    run_jobs()
    assert passages() == ["Trout rod\nFor rivers\nRods", "Reel\n\nReels"]

    path.write_text("Rod,Fishing > Rods,1,Trout rod,For lakes\nReel,Fishing > Reels,2,Reel,NULL\n")
    call_command("oscar_import_catalogue", str(path))
    run_jobs()
    assert passages() == ["Trout rod\nFor lakes\nRods", "Reel\n\nReels"]


def test_a_save_without_a_change_adds_no_job(product):
    before = Job.objects.count()

    product.save()
    Category.objects.get(name="Rods").set_ancestors_are_public()

    assert Job.objects.count() == before


def test_a_page_of_products_takes_a_query_per_relation(product, kind):
    spec = specs.get("catalogue.ProductEmbedding")

    def queries() -> int:
        keys = [str(pk) for pk in Product.objects.values_list("pk", flat=True)]
        with CaptureQueriesContext(connection) as captured:
            assert not sources.load(spec, keys, using="default").errors
        return len([one for one in captured if one["sql"].startswith("SELECT")])

    one = queries()
    for number in range(5):
        other = Product(title=f"Rod {number}", product_class=kind)
        other.attr.text_value = "carbon"
        other.attr.option_value = Option.objects.earliest("pk")
        other.save()

    assert queries() == one + 1  # that of the options


def test_a_category_is_embedded_by_its_proxy(product, run_jobs):
    label = "with_oscar.ShelfEmbedding"
    assert passages(label) == ["Fishing", "Rods\n\nTrout rod"]

    product.title = "Salmon rod"
    product.save()
    run_jobs()

    assert passages(label)[1] == "Rods\n\nSalmon rod"
    assert [hit.name for hit in search(Shelf, "salmon", limit=1)] == ["Rods"]
