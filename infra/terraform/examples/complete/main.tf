# Tables, Valkey, alarms, the WAF and three nodes on ECS Fargate behind an internal load
# balancer. Nothing is reachable from outside the VPC.

data "aws_region" "current" {}

locals {
  name = "coordsvc"
  tags = { service = "coordsvc" }
}

resource "random_password" "valkey" {
  length           = 64
  override_special = "!&#$^<>-"
}

resource "aws_sns_topic" "alarms" {
  #checkov:skip=CKV_AWS_26:CloudWatch may publish to no topic under the key that AWS manages, and alarms hold no secret
  name = "${local.name}-alarms"
  tags = local.tags
}

module "coordsvc" {
  source = "../.."

  name                      = local.name
  vpc_id                    = var.vpc_id
  caller_security_group_ids = [aws_security_group.balancer.id]
  ops_security_group_ids    = [aws_security_group.balancer.id]
  envoy_security_group_ids  = var.envoy_security_group_ids
  valkey_subnet_ids         = var.private_subnet_ids
  valkey_auth_token         = random_password.valkey.result
  alarm_topic_arns          = [aws_sns_topic.alarms.arn]
  waf_rate_limit            = 100000
  waf_load_balancer_arn     = aws_lb.this.arn
  tags                      = local.tags
}

# The address of Valkey holds its password.
resource "aws_secretsmanager_secret" "redis_url" {
  #checkov:skip=CKV_AWS_149:encrypted with the key that AWS manages; name one of your own
  #checkov:skip=CKV2_AWS_57:the password is rotated by tainting random_password.valkey: both it and the new one work while nodes restart
  name = "${local.name}/redis-url"
  tags = local.tags
}

resource "aws_secretsmanager_secret_version" "redis_url" {
  secret_id     = aws_secretsmanager_secret.redis_url.id
  secret_string = replace(module.coordsvc.redis_url, "rediss://", "rediss://:${urlencode(random_password.valkey.result)}@")
}
