# With billing_mode PROVISIONED each table's capacity follows its use. A maximum that is
# the minimum keeps it where it is.

locals {
  scaled = local.provisioned ? {
    for pair in setproduct(keys(local.tables), ["Read", "Write"]) : "${pair[0]}-${lower(pair[1])}" => {
      table     = pair[0]
      direction = pair[1]
      min       = pair[1] == "Read" ? var.read_capacity : var.write_capacity
      max       = pair[1] == "Read" ? var.read_capacity_max : var.write_capacity_max
    }
  } : {}
}

resource "aws_appautoscaling_target" "table" {
  for_each = local.scaled

  service_namespace  = "dynamodb"
  resource_id        = "table/${aws_dynamodb_table.this[each.value.table].name}"
  scalable_dimension = "dynamodb:table:${each.value.direction}CapacityUnits"
  min_capacity       = each.value.min
  max_capacity       = max(each.value.min, each.value.max)
}

resource "aws_appautoscaling_policy" "table" {
  for_each = local.scaled

  name               = "DynamoDB${each.value.direction}CapacityUtilization:${aws_appautoscaling_target.table[each.key].resource_id}"
  policy_type        = "TargetTrackingScaling"
  service_namespace  = aws_appautoscaling_target.table[each.key].service_namespace
  resource_id        = aws_appautoscaling_target.table[each.key].resource_id
  scalable_dimension = aws_appautoscaling_target.table[each.key].scalable_dimension

  target_tracking_scaling_policy_configuration {
    target_value = var.capacity_target

    predefined_metric_specification {
      predefined_metric_type = "DynamoDB${each.value.direction}CapacityUtilization"
    }
  }
}
