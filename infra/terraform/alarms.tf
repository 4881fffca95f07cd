# Alarms that AWS can raise by itself. What callers see is in the service's own metrics:
# infra/prometheus/rules.yml.

locals {
  # The names that ElastiCache gives to the nodes of a replication group.
  valkey_nodes = !local.valkey ? [] : local.sharded ? [
    for pair in setproduct(range(1, var.valkey_shards + 1), range(1, var.valkey_replicas + 2)) : format("%s-%04d-%03d", var.name, pair[0], pair[1])
  ] : [for n in range(1, var.valkey_replicas + 2) : format("%s-%03d", var.name, n)]

  table_alarms = { for pair in setproduct(keys(local.tables), ["ReadThrottleEvents", "WriteThrottleEvents"]) : "${pair[0]}-${pair[1]}" => { table = pair[0], metric = pair[1] } }

  valkey_bounds = {
    EngineCPUUtilization          = { above = 80, says = "one core carries all scripts of a shard" }
    DatabaseMemoryUsagePercentage = { above = 80, says = "beyond 100 % the least used keys go early" }
    Evictions                     = { above = 0, says = "keys go before their TTL: buckets burst again, locks may be granted twice" }
    ReplicationLag                = { above = 1, says = "a failover loses as many seconds" }
  }

  valkey_alarms = { for pair in setproduct(local.valkey_nodes, keys(local.valkey_bounds)) : "${pair[0]}-${pair[1]}" => { node = pair[0], metric = pair[1] } }
}

# docs/runbooks/dynamodb-throttling.md
resource "aws_cloudwatch_metric_alarm" "throttled" {
  for_each = var.alarms ? local.table_alarms : {}

  alarm_name          = "${var.table_prefix}${each.value.table} throttled: ${each.value.metric}"
  alarm_description   = "docs/runbooks/dynamodb-throttling.md"
  namespace           = "AWS/DynamoDB"
  metric_name         = each.value.metric
  dimensions          = { TableName = aws_dynamodb_table.this[each.value.table].name }
  statistic           = "Sum"
  period              = 60
  evaluation_periods  = 3
  datapoints_to_alarm = 2
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_topic_arns
  ok_actions          = var.alarm_topic_arns
  tags                = var.tags
}

# docs/runbooks/redis-failover.md
resource "aws_cloudwatch_metric_alarm" "valkey" {
  for_each = var.alarms ? local.valkey_alarms : {}

  alarm_name          = "${each.value.node}: ${each.value.metric}"
  alarm_description   = "${local.valkey_bounds[each.value.metric].says}; docs/runbooks/redis-failover.md"
  namespace           = "AWS/ElastiCache"
  metric_name         = each.value.metric
  dimensions          = { CacheClusterId = each.value.node, CacheNodeId = "0001" }
  statistic           = "Maximum"
  period              = 60
  evaluation_periods  = 5
  datapoints_to_alarm = 3
  comparison_operator = "GreaterThanThreshold"
  threshold           = local.valkey_bounds[each.value.metric].above
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_topic_arns
  ok_actions          = var.alarm_topic_arns
  tags                = var.tags
}
