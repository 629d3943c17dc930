"""Imported rows are enqueued, those that did not change are not, and exports have no vectors."""

from __future__ import annotations

import pytest
from django.apps import apps
from import_export import fields, resources, widgets
from tablib import Dataset

from pgembed_django import search
from pgembed_django.models import Job, Ripple
from tests.packages.with_importexport.models import Category, Product

pytestmark = pytest.mark.django_db

ROWS = 1000


class ByName(widgets.ForeignKeyWidget):
    """Creates the categories that are missing, as the documentation of the package shows."""

    def clean(self, value, row=None, **kwargs):
        return self.model.objects.get_or_create(name=value)[0]


class ProductResource(resources.ModelResource):
    category = fields.Field("category", "category", ByName(Category, "name"))

    class Meta:
        model = Product
        fields = ("sku", "name", "description", "price", "category")
        import_id_fields = ("sku",)
        use_bulk = True
        batch_size = 300
        skip_unchanged = True
        report_skipped = False


class OneByOne(ProductResource):
    class Meta:
        use_bulk = False
        skip_unchanged = False


def sheet(count: int = ROWS, **changed: str) -> Dataset:
    """A sheet of products. ``changed``: what is different in the last ten."""
    data = Dataset(headers=["sku", "name", "description", "price", "category"])
    for number in range(count):
        row = {"name": f"Product {number}", "description": "Plain", "price": "1", "category": "a"}
        row |= changed if number >= count - 10 else {}
        data.append([f"sku-{number}", *row.values()])
    return data


def load(data: Dataset, resource: type[resources.ModelResource] = ProductResource, **how):
    result = resource().import_data(data, raise_errors=True, **how)
    return {kind: number for kind, number in result.totals.items() if number}


def pending() -> int:
    return Job.objects.filter(status="pending").count()


def passages() -> list[str]:
    chunks = apps.get_model("with_importexport.ProductEmbedding").objects
    return list(chunks.order_by("source_id").values_list("passage", flat=True))


def test_all_rows_of_an_import_are_embedded(run_jobs):
    assert load(sheet()) == {"new": ROWS}

    assert pending() == ROWS
    assert run_jobs() == ROWS
    assert passages()[-1] == "Product 999\n\nPlain\n\na"
    [hit] = search(Product, "999", limit=1)
    assert hit.sku == "sku-999"


@pytest.mark.parametrize("resource", [ProductResource, OneByOne])
def test_only_what_changed_is_embedded_again(run_jobs, resource):
    load(sheet(50))
    run_jobs()

    load(sheet(50), resource)
    assert pending() == 0
    load(sheet(50, price="2"), resource)
    assert pending() == 0
    load(sheet(50, description="Blue"), resource)
    assert pending() == 10
    run_jobs()

    assert passages()[-1] == "Product 49\n\nBlue\n\na"
    load(sheet(50, description="Blue", category="b"), resource)
    run_jobs()
    assert passages()[-1] == "Product 49\n\nBlue\n\nb"


@pytest.mark.parametrize("resource", [ProductResource, OneByOne])
def test_a_dry_run_leaves_nothing(run_jobs, resource):
    load(sheet(50))
    run_jobs()
    before = Job.objects.count(), passages()

    totals = load(sheet(60, name="Other", category="b"), resource, dry_run=True)

    assert totals["new"] == 10
    assert not Category.objects.filter(name="b").exists()
    assert (Job.objects.count(), passages()) == before
    assert not Ripple.objects.exists()


def test_a_refused_import_leaves_nothing():
    data = sheet(20)
    data.append(["sku-x", "Odd", "", "dear", "a"])

    result = OneByOne().import_data(data, use_transactions=True)

    assert result.has_errors()
    assert not Product.objects.exists()
    assert not Job.objects.exists()


def test_rows_that_an_import_deletes_are_forgotten(run_jobs):
    class Removing(ProductResource):
        def for_delete(self, row, instance):
            return row["description"] == "gone"

    load(sheet(20))
    run_jobs()

    assert load(sheet(20, description="gone"), Removing)["delete"] == 10

    assert len(passages()) == 10


def test_an_export_has_the_rows_alone(run_jobs):
    class Everything(resources.ModelResource):
        class Meta:
            model = Product

    load(sheet(20))
    run_jobs()

    data = Everything().export()

    assert sorted(data.headers) == ["category", "description", "id", "name", "price", "sku"]
    assert len(data) == 20
