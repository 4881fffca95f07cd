# ElastiCache for Valkey: limits, slots, locks and the session cache. Everything there may
# be lost and is made anew, so there are no snapshots; what matters is that a replica takes
# over at once. Only where subnets are named.

locals {
  valkey      = var.vpc_id != null && length(var.valkey_subnet_ids) > 0
  valkey_port = 6379
  sharded     = var.valkey_shards > 1
}

resource "aws_elasticache_subnet_group" "this" {
  count = local.valkey ? 1 : 0

  name       = var.name
  subnet_ids = var.valkey_subnet_ids
  tags       = var.tags
}

resource "aws_elasticache_parameter_group" "this" {
  count = local.valkey ? 1 : 0

  name        = var.name
  family      = "valkey8"
  description = "Valkey of coordsvc"
  tags        = var.tags

  # Every key has a TTL and may go before it: the least used one does, and no write is refused.
  parameter {
    name  = "maxmemory-policy"
    value = "volatile-lru"
  }

  parameter {
    name  = "cluster-enabled"
    value = local.sharded ? "yes" : "no"
  }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_elasticache_replication_group" "this" {
  count = local.valkey ? 1 : 0

  replication_group_id = var.name
  description          = "Limits, locks and the session cache of coordsvc"
  engine               = "valkey"
  engine_version       = var.valkey_version
  node_type            = var.valkey_node_type
  port                 = local.valkey_port
  parameter_group_name = aws_elasticache_parameter_group.this[0].name
  subnet_group_name    = aws_elasticache_subnet_group.this[0].name
  security_group_ids   = [aws_security_group.valkey[0].id]

  num_node_groups            = var.valkey_shards
  replicas_per_node_group    = var.valkey_replicas
  automatic_failover_enabled = true
  multi_az_enabled           = true

  transit_encryption_enabled = true
  auth_token                 = var.valkey_auth_token
  auth_token_update_strategy = "ROTATE"
  at_rest_encryption_enabled = true
  kms_key_id                 = var.kms_key_arn

  snapshot_retention_limit   = 0
  auto_minor_version_upgrade = true
  apply_immediately          = false
  maintenance_window         = var.valkey_maintenance_window
  tags                       = var.tags

  lifecycle {
    precondition {
      condition     = var.valkey_auth_token != null
      error_message = "Name valkey_auth_token: nobody may use Valkey without it."
    }
  }
}
