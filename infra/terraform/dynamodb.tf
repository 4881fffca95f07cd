# The tables of coordsvc, as `coordsvc tables create` would make them. A test in
# the repository compares names, keys, indexes and TTL with the code.

locals {
  provisioned    = var.billing_mode == "PROVISIONED"
  read_capacity  = local.provisioned ? var.read_capacity : null
  write_capacity = local.provisioned ? var.write_capacity : null
}

# Leases, with the fence counter and the high-water mark of each resource. No
# TTL: the counter outlives the lease, or tokens would repeat.
resource "aws_dynamodb_table" "leases" {
  name                        = "${var.table_prefix}leases"
  billing_mode                = var.billing_mode
  read_capacity               = local.read_capacity
  write_capacity              = local.write_capacity
  deletion_protection_enabled = var.deletion_protection
  hash_key                    = "pk"

  attribute {
    name = "pk"
    type = "S"
  }

  attribute {
    name = "owner_key"
    type = "S"
  }

  # Keys alone, so that a renewal does not write to it; released leases are not in it.
  global_secondary_index {
    name            = "by_owner"
    projection_type = "KEYS_ONLY"
    read_capacity   = local.read_capacity
    write_capacity  = local.write_capacity

    key_schema {
      attribute_name = "owner_key"
      key_type       = "HASH"
    }

    key_schema {
      attribute_name = "pk"
      key_type       = "RANGE"
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
}

# Protected records, each with its guard against stale writers. No TTL.
resource "aws_dynamodb_table" "protected" {
  name                        = "${var.table_prefix}protected"
  billing_mode                = var.billing_mode
  read_capacity               = local.read_capacity
  write_capacity              = local.write_capacity
  deletion_protection_enabled = var.deletion_protection
  hash_key                    = "pk"

  attribute {
    name = "pk"
    type = "S"
  }

  point_in_time_recovery {
    enabled = true
  }

  server_side_encryption {
    enabled     = true
    kms_key_arn = var.kms_key_arn
  }

  tags = var.tags
}

# API keys, by hash. No TTL: a revoked key stays, so that it is never added again.
resource "aws_dynamodb_table" "api_keys" {
  name                        = "${var.table_prefix}api_keys"
  billing_mode                = var.billing_mode
  read_capacity               = local.read_capacity
  write_capacity              = local.write_capacity
  deletion_protection_enabled = var.deletion_protection
  hash_key                    = "pk"

  attribute {
    name = "pk"
    type = "S"
  }

  attribute {
    name = "tenant"
    type = "S"
  }

  attribute {
    name = "id"
    type = "S"
  }

  global_secondary_index {
    name            = "by_tenant"
    projection_type = "ALL"
    read_capacity   = local.read_capacity
    write_capacity  = local.write_capacity

    key_schema {
      attribute_name = "tenant"
      key_type       = "HASH"
    }

    key_schema {
      attribute_name = "id"
      key_type       = "RANGE"
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
}

# Who did what: per tenant, month and shard. TTL removes an event after 400 days.
resource "aws_dynamodb_table" "audit" {
  name                        = "${var.table_prefix}audit"
  billing_mode                = var.billing_mode
  read_capacity               = local.read_capacity
  write_capacity              = local.write_capacity
  deletion_protection_enabled = var.deletion_protection
  hash_key                    = "pk"
  range_key                   = "sk"

  attribute {
    name = "pk"
    type = "S"
  }

  attribute {
    name = "sk"
    type = "S"
  }

  ttl {
    attribute_name = "ttl"
    enabled        = true
  }

  point_in_time_recovery {
    enabled = true
  }

  server_side_encryption {
    enabled     = true
    kms_key_arn = var.kms_key_arn
  }

  tags = var.tags
}

# Users, their sessions and what is kept beside one: a partition per user. TTL removes
# sessions some time after their absolute end; it decides nothing.
resource "aws_dynamodb_table" "sessions" {
  name                        = "${var.table_prefix}sessions"
  billing_mode                = var.billing_mode
  read_capacity               = local.read_capacity
  write_capacity              = local.write_capacity
  deletion_protection_enabled = var.deletion_protection
  hash_key                    = "pk"
  range_key                   = "sk"

  attribute {
    name = "pk"
    type = "S"
  }

  attribute {
    name = "sk"
    type = "S"
  }

  ttl {
    attribute_name = "ttl"
    enabled        = true
  }

  point_in_time_recovery {
    enabled = true
  }

  server_side_encryption {
    enabled     = true
    kms_key_arn = var.kms_key_arn
  }

  tags = var.tags
}

# What operators set, and the units of each window. TTL removes a window a week
# after its end, and nothing else.
resource "aws_dynamodb_table" "quotas" {
  name                        = "${var.table_prefix}quotas"
  billing_mode                = var.billing_mode
  read_capacity               = local.read_capacity
  write_capacity              = local.write_capacity
  deletion_protection_enabled = var.deletion_protection
  hash_key                    = "pk"

  attribute {
    name = "pk"
    type = "S"
  }

  ttl {
    attribute_name = "ttl"
    enabled        = true
  }

  point_in_time_recovery {
    enabled = true
  }

  server_side_encryption {
    enabled     = true
    kms_key_arn = var.kms_key_arn
  }

  tags = var.tags
}

# Reserved units, with an index of those that are active. TTL removes what has ended.
resource "aws_dynamodb_table" "quota_reservations" {
  name                        = "${var.table_prefix}quota_reservations"
  billing_mode                = var.billing_mode
  read_capacity               = local.read_capacity
  write_capacity              = local.write_capacity
  deletion_protection_enabled = var.deletion_protection
  hash_key                    = "pk"

  attribute {
    name = "pk"
    type = "S"
  }

  attribute {
    name = "due_shard"
    type = "S"
  }

  attribute {
    name = "due"
    type = "S"
  }

  global_secondary_index {
    name            = "by_due"
    projection_type = "ALL"
    read_capacity   = local.read_capacity
    write_capacity  = local.write_capacity

    key_schema {
      attribute_name = "due_shard"
      key_type       = "HASH"
    }

    key_schema {
      attribute_name = "due"
      key_type       = "RANGE"
    }
  }

  ttl {
    attribute_name = "ttl"
    enabled        = true
  }

  point_in_time_recovery {
    enabled = true
  }

  server_side_encryption {
    enabled     = true
    kms_key_arn = var.kms_key_arn
  }

  tags = var.tags
}

# Requests that took units. TTL removes them when they are no longer known.
resource "aws_dynamodb_table" "quota_receipts" {
  name                        = "${var.table_prefix}quota_receipts"
  billing_mode                = var.billing_mode
  read_capacity               = local.read_capacity
  write_capacity              = local.write_capacity
  deletion_protection_enabled = var.deletion_protection
  hash_key                    = "pk"

  attribute {
    name = "pk"
    type = "S"
  }

  ttl {
    attribute_name = "ttl"
    enabled        = true
  }

  point_in_time_recovery {
    enabled = true
  }

  server_side_encryption {
    enabled     = true
    kms_key_arn = var.kms_key_arn
  }

  tags = var.tags
}

# Claimed idempotency keys and their responses. TTL removes a record a day after its end.
resource "aws_dynamodb_table" "idempotency" {
  name                        = "${var.table_prefix}idempotency"
  billing_mode                = var.billing_mode
  read_capacity               = local.read_capacity
  write_capacity              = local.write_capacity
  deletion_protection_enabled = var.deletion_protection
  hash_key                    = "pk"

  attribute {
    name = "pk"
    type = "S"
  }

  ttl {
    attribute_name = "ttl"
    enabled        = true
  }

  point_in_time_recovery {
    enabled = true
  }

  server_side_encryption {
    enabled     = true
    kms_key_arn = var.kms_key_arn
  }

  tags = var.tags
}
