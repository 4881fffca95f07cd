output "table_names" {
  description = "The tables' names, by what they hold."
  value       = { for key, table in aws_dynamodb_table.this : key => table.name }
}

output "table_arns" {
  description = "The tables' ARNs, by what they hold."
  value       = { for key, table in aws_dynamodb_table.this : key => table.arn }
}

output "policy_arn" {
  description = "ARN of the IAM policy to attach to the role of the nodes."
  value       = aws_iam_policy.service.arn
}

output "policy_json" {
  description = "The same policy as a document."
  value       = data.aws_iam_policy_document.service.json
}

output "service_security_group_id" {
  description = "Security group of the nodes; null without vpc_id."
  value       = one(aws_security_group.service[*].id)
}

output "redis_url" {
  description = "COORD_REDIS_URL without the password, which belongs behind rediss://: as in rediss://:PASSWORD@host. null without Valkey."
  value       = !local.valkey ? null : local.sharded ? "rediss://${aws_elasticache_replication_group.this[0].configuration_endpoint_address}:${local.valkey_port}?addr=${aws_elasticache_replication_group.this[0].configuration_endpoint_address}:${local.valkey_port}" : "rediss://${aws_elasticache_replication_group.this[0].primary_endpoint_address}:${local.valkey_port}"
}

output "web_acl_arn" {
  description = "ARN of the WAF's web ACL; null without waf_rate_limit."
  value       = one(aws_wafv2_web_acl.this[*].arn)
}
