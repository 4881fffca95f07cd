output "table_names" {
  description = "The tables' names, by what they hold."
  value = {
    leases             = aws_dynamodb_table.leases.name
    sessions           = aws_dynamodb_table.sessions.name
    protected          = aws_dynamodb_table.protected.name
    api_keys           = aws_dynamodb_table.api_keys.name
    audit              = aws_dynamodb_table.audit.name
    quotas             = aws_dynamodb_table.quotas.name
    quota_reservations = aws_dynamodb_table.quota_reservations.name
    quota_receipts     = aws_dynamodb_table.quota_receipts.name
    idempotency        = aws_dynamodb_table.idempotency.name
  }
}

output "table_arns" {
  description = "The tables' ARNs, by what they hold."
  value = {
    leases             = aws_dynamodb_table.leases.arn
    sessions           = aws_dynamodb_table.sessions.arn
    protected          = aws_dynamodb_table.protected.arn
    api_keys           = aws_dynamodb_table.api_keys.arn
    audit              = aws_dynamodb_table.audit.arn
    quotas             = aws_dynamodb_table.quotas.arn
    quota_reservations = aws_dynamodb_table.quota_reservations.arn
    quota_receipts     = aws_dynamodb_table.quota_receipts.arn
    idempotency        = aws_dynamodb_table.idempotency.arn
  }
}

output "index_arns" {
  description = "The indexes' ARNs, by table and index, for the service's dynamodb:Query."
  value = {
    quota_reservations = { by_due = "${aws_dynamodb_table.quota_reservations.arn}/index/by_due" }
    api_keys           = { by_tenant = "${aws_dynamodb_table.api_keys.arn}/index/by_tenant" }
  }
}
