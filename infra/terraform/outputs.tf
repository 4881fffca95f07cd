output "table_names" {
  description = "The tables' names, by what they hold."
  value = {
    leases    = aws_dynamodb_table.leases.name
    protected = aws_dynamodb_table.protected.name
    api_keys  = aws_dynamodb_table.api_keys.name
  }
}

output "table_arns" {
  description = "The tables' ARNs, by what they hold."
  value = {
    leases    = aws_dynamodb_table.leases.arn
    protected = aws_dynamodb_table.protected.arn
    api_keys  = aws_dynamodb_table.api_keys.arn
  }
}

output "index_arns" {
  description = "The indexes' ARNs, by table and index, for the service's dynamodb:Query."
  value = {
    api_keys = { by_tenant = "${aws_dynamodb_table.api_keys.arn}/index/by_tenant" }
  }
}
