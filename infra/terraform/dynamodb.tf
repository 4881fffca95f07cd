# The tables of coordsvc, as `coordsvc tables create` would make them. A test in
# the repository compares names, keys, indexes and TTL with the code.

locals {
  provisioned = var.billing_mode == "PROVISIONED"

  # keys are the partition key and, where the table has one, the sort key: strings, all
  # of them. ttl is the attribute by which DynamoDB removes what is over already; a table
  # without one keeps its items, since a counter must outlive its lease and a revoked key
  # is never added again.
  tables = {
    # Leases, with the fence counter and the high-water mark of each resource. The index
    # holds keys alone, so that a renewal does not write to it; released leases are not in it.
    leases = {
      keys    = ["pk"]
      ttl     = null
      indexes = { by_owner = { keys = ["owner_key", "pk"], projection = "KEYS_ONLY" } }
    }
    # Protected records, each with its guard against stale writers.
    protected = { keys = ["pk"], ttl = null, indexes = {} }
    # API keys, by hash.
    api_keys = {
      keys    = ["pk"]
      ttl     = null
      indexes = { by_tenant = { keys = ["tenant", "id"], projection = "ALL" } }
    }
    # Who did what: per tenant, month and shard. TTL removes an event after 400 days.
    audit = { keys = ["pk", "sk"], ttl = "ttl", indexes = {} }
    # Users, their sessions and what is kept beside one: a partition per user. TTL removes
    # sessions some time after their absolute end.
    sessions = { keys = ["pk", "sk"], ttl = "ttl", indexes = {} }
    # What operators set, and the units of each window. TTL removes a window a week after its end.
    quotas = { keys = ["pk"], ttl = "ttl", indexes = {} }
    # Reserved units, with an index of those that are active. TTL removes what has ended.
    quota_reservations = {
      keys    = ["pk"]
      ttl     = "ttl"
      indexes = { by_due = { keys = ["due_shard", "due"], projection = "ALL" } }
    }
    # Requests that took units. TTL removes them when they are no longer known.
    quota_receipts = { keys = ["pk"], ttl = "ttl", indexes = {} }
    # Claimed idempotency keys and their responses. TTL removes a record a day after its end.
    idempotency = { keys = ["pk"], ttl = "ttl", indexes = {} }
  }
}

resource "aws_dynamodb_table" "this" {
  for_each = local.tables

  name                        = "${var.table_prefix}${each.key}"
  billing_mode                = var.billing_mode
  read_capacity               = local.provisioned ? var.read_capacity : null
  write_capacity              = local.provisioned ? var.write_capacity : null
  deletion_protection_enabled = var.deletion_protection
  hash_key                    = each.value.keys[0]
  range_key                   = length(each.value.keys) > 1 ? each.value.keys[1] : null

  dynamic "attribute" {
    for_each = toset(concat(each.value.keys, flatten([for index in each.value.indexes : index.keys])))

    content {
      name = attribute.value
      type = "S"
    }
  }

  dynamic "global_secondary_index" {
    for_each = each.value.indexes

    content {
      name            = global_secondary_index.key
      projection_type = global_secondary_index.value.projection
      # An index that is short of capacity throttles the writes of its table: it has the most
      # that the table may grow to.
      read_capacity  = local.provisioned ? var.read_capacity_max : null
      write_capacity = local.provisioned ? var.write_capacity_max : null

      key_schema {
        attribute_name = global_secondary_index.value.keys[0]
        key_type       = "HASH"
      }

      key_schema {
        attribute_name = global_secondary_index.value.keys[1]
        key_type       = "RANGE"
      }
    }
  }

  dynamic "ttl" {
    for_each = each.value.ttl == null ? [] : [each.value.ttl]

    content {
      attribute_name = ttl.value
      enabled        = true
    }
  }

  point_in_time_recovery {
    enabled = true
  }

  server_side_encryption {
    enabled     = true
    kms_key_arn = var.kms_key_arn
  }

  tags = var.tags

  lifecycle {
    # Autoscaling changes them.
    ignore_changes = [read_capacity, write_capacity]
  }
}
