# What the variables take and refuse, judged by Terraform itself. `make terraform-test` runs it on
# a copy of variables.tf alone, which needs no provider and so no network.

run "defaults" {
  command = plan
}

run "largest_and_least" {
  command = plan

  variables {
    name                      = "a0"
    table_prefix              = "Prod.coord-1_"
    billing_mode              = "PROVISIONED"
    read_capacity             = 1
    write_capacity            = 1
    read_capacity_max         = 1
    write_capacity_max        = 1
    capacity_target           = 90
    kms_key_arn               = "arn:aws-cn:kms:cn-north-1:123456789012:key/0a1b"
    vpc_id                    = "vpc-0a"
    caller_security_group_ids = ["sg-0a", "sg-0b"]
    ops_security_group_ids    = ["sg-0a"]
    envoy_security_group_ids  = ["sg-0a"]
    valkey_subnet_ids         = ["subnet-0a", "subnet-0b"]
    valkey_auth_token         = "0123456789abcdef"
    valkey_version            = "8.2"
    valkey_node_type          = "cache.r7g.large"
    valkey_shards             = 500
    valkey_replicas           = 5
    valkey_maintenance_window = "sat:23:00-sun:00:00"
    alarm_topic_arns          = ["arn:aws:sns:eu-central-1:123456789012:on-call.fifo"]
    waf_rate_limit            = 10
    waf_load_balancer_arn     = "arn:aws:elasticloadbalancing:eu-central-1:123456789012:loadbalancer/app/a/1"
  }
}

run "all_wrong" {
  command = plan

  variables {
    name                      = "a--b"
    table_prefix              = ""
    billing_mode              = "ON_DEMAND"
    read_capacity             = 0
    write_capacity            = 1.5
    read_capacity_max         = 0
    write_capacity_max        = 1.5
    capacity_target           = 91
    kms_key_arn               = "alias/coordsvc"
    vpc_id                    = "coordsvc"
    caller_security_group_ids = ["sg-0a", "0.0.0.0/0"]
    ops_security_group_ids    = ["default"]
    envoy_security_group_ids  = ["sg-"]
    valkey_subnet_ids         = ["subnet-0a"]
    valkey_auth_token         = "too short"
    valkey_version            = "7.2"
    valkey_node_type          = "t4g.small"
    valkey_shards             = 0
    valkey_replicas           = 0
    valkey_maintenance_window = "sunday"
    alarm_topic_arns          = ["on-call"]
    waf_rate_limit            = 9
    waf_load_balancer_arn     = "arn:aws:elasticloadbalancing:eu-central-1:123456789012:loadbalancer/net/a/1"
  }

  expect_failures = [
    var.name, var.table_prefix, var.billing_mode, var.read_capacity, var.write_capacity, var.read_capacity_max, var.write_capacity_max,
    var.capacity_target, var.kms_key_arn, var.vpc_id, var.caller_security_group_ids, var.ops_security_group_ids, var.envoy_security_group_ids,
    var.valkey_subnet_ids, var.valkey_auth_token, var.valkey_version, var.valkey_node_type, var.valkey_shards, var.valkey_replicas,
    var.valkey_maintenance_window, var.alarm_topic_arns, var.waf_rate_limit, var.waf_load_balancer_arn,
  ]
}
