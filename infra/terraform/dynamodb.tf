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
