# What a node may do: for each key type, the calls that it makes for that type, on the
# table (or the index) where the type lives, and nothing else. A test in the repository
# records every call that nodes make in the whole run of the tests and compares: none is missing, none unused.
#
# Items of a transaction need the action of each item: there is no action for the whole.
# The one call that is left out is for engines that do not return an item whose condition
# failed: an event is read then (DynamoDB returns it).

locals {
  access = {
    session           = { table = "sessions", index = null, actions = ["GetItem", "UpdateItem", "ConditionCheckItem", "Query", "BatchWriteItem"] }
    session_data      = { table = "sessions", index = null, actions = ["GetItem", "UpdateItem"] }
    user_epoch        = { table = "sessions", index = null, actions = ["GetItem", "UpdateItem", "ConditionCheckItem"] }
    tenant_epoch      = { table = "sessions", index = null, actions = ["GetItem", "UpdateItem"] }
    deployment        = { table = "sessions", index = null, actions = ["GetItem", "UpdateItem"] }
    lease             = { table = "leases", index = "by_owner", actions = ["GetItem", "UpdateItem", "ConditionCheckItem", "BatchGetItem"] }
    fence_floor       = { table = "leases", index = null, actions = ["GetItem"] }
    protected_record  = { table = "protected", index = null, actions = ["GetItem", "UpdateItem"] }
    quota             = { table = "quotas", index = null, actions = ["GetItem", "UpdateItem", "ConditionCheckItem"] }
    quota_reservation = { table = "quota_reservations", index = "by_due", actions = ["GetItem", "UpdateItem"] }
    quota_receipt     = { table = "quota_receipts", index = null, actions = ["GetItem", "UpdateItem"] }
    idempotency       = { table = "idempotency", index = null, actions = ["GetItem", "UpdateItem"] }
    api_key           = { table = "api_keys", index = "by_tenant", actions = ["GetItem", "PutItem", "UpdateItem"] }
    audit_event       = { table = "audit", index = null, actions = ["PutItem", "Query"] }
  }
}

data "aws_iam_policy_document" "service" {
  dynamic "statement" {
    for_each = local.access

    content {
      sid       = replace(title(replace(statement.key, "_", " ")), " ", "")
      actions   = [for action in statement.value.actions : "dynamodb:${action}"]
      resources = [aws_dynamodb_table.this[statement.value.table].arn]
    }
  }

  dynamic "statement" {
    for_each = { for key, access in local.access : key => access if access.index != null }

    content {
      sid       = "${replace(title(replace(statement.key, "_", " ")), " ", "")}Index"
      actions   = ["dynamodb:Query"]
      resources = ["${aws_dynamodb_table.this[statement.value.table].arn}/index/${statement.value.index}"]
    }
  }

  # At its start a node compares the tables with what it needs.
  statement {
    sid       = "Start"
    actions   = ["dynamodb:DescribeTable"]
    resources = [for table in aws_dynamodb_table.this : table.arn]
  }

  # DynamoDB encrypts with the key on behalf of who asks.
  dynamic "statement" {
    for_each = var.kms_key_arn == null ? [] : [var.kms_key_arn]

    content {
      sid       = "Key"
      actions   = ["kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKey*", "kms:ReEncrypt*", "kms:CreateGrant"]
      resources = [statement.value]

      condition {
        test     = "StringLike"
        variable = "kms:ViaService"
        values   = ["dynamodb.*.amazonaws.com"]
      }
    }
  }
}

resource "aws_iam_policy" "service" {
  name        = "${var.name}-service"
  description = "What a node of coordsvc may do with its tables."
  policy      = data.aws_iam_policy_document.service.json
  tags        = var.tags
}
