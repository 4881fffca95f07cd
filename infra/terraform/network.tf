# Who may reach whom: callers the API, the service Redis and the tables, nobody else. Only
# where a VPC is named.

resource "aws_security_group" "service" {
  #checkov:skip=CKV2_AWS_5:the nodes of the caller carry it
  count = var.vpc_id == null ? 0 : 1

  name        = "${var.name}-service"
  description = "Nodes of coordsvc"
  vpc_id      = var.vpc_id
  tags        = merge(var.tags, { Name = "${var.name}-service" })
}

resource "aws_vpc_security_group_ingress_rule" "api" {
  for_each = var.vpc_id == null ? [] : toset(var.caller_security_group_ids)

  security_group_id            = aws_security_group.service[0].id
  description                  = "The API, from callers"
  referenced_security_group_id = each.value
  ip_protocol                  = "tcp"
  from_port                    = 8080
  to_port                      = 8080
}

resource "aws_vpc_security_group_ingress_rule" "ops" {
  for_each = var.vpc_id == null ? [] : toset(var.ops_security_group_ids)

  security_group_id            = aws_security_group.service[0].id
  description                  = "Health and metrics, from load balancers and Prometheus"
  referenced_security_group_id = each.value
  ip_protocol                  = "tcp"
  from_port                    = 9090
  to_port                      = 9090
}

resource "aws_vpc_security_group_ingress_rule" "grpc" {
  for_each = var.vpc_id == null ? [] : toset(var.envoy_security_group_ids)

  security_group_id            = aws_security_group.service[0].id
  description                  = "Envoy's rate limit protocol over gRPC, from proxies"
  referenced_security_group_id = each.value
  ip_protocol                  = "tcp"
  from_port                    = 9091
  to_port                      = 9091
}

# DynamoDB, and what a container's start needs: its image, its log, its secrets.
resource "aws_vpc_security_group_egress_rule" "https" {
  count = var.vpc_id == null ? 0 : 1

  security_group_id = aws_security_group.service[0].id
  description       = "AWS APIs"
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_vpc_security_group_egress_rule" "valkey" {
  count = local.valkey ? 1 : 0

  security_group_id            = aws_security_group.service[0].id
  description                  = "Valkey"
  referenced_security_group_id = aws_security_group.valkey[0].id
  ip_protocol                  = "tcp"
  from_port                    = local.valkey_port
  to_port                      = local.valkey_port
}

resource "aws_security_group" "valkey" {
  count = local.valkey ? 1 : 0

  name        = "${var.name}-valkey"
  description = "Valkey of coordsvc"
  vpc_id      = var.vpc_id
  tags        = merge(var.tags, { Name = "${var.name}-valkey" })
}

resource "aws_vpc_security_group_ingress_rule" "valkey" {
  count = local.valkey ? 1 : 0

  security_group_id            = aws_security_group.valkey[0].id
  description                  = "Nodes of coordsvc"
  referenced_security_group_id = aws_security_group.service[0].id
  ip_protocol                  = "tcp"
  from_port                    = local.valkey_port
  to_port                      = local.valkey_port
}
