resource "aws_security_group" "balancer" {
  name        = "${local.name}-balancer"
  description = "Load balancer of coordsvc"
  vpc_id      = var.vpc_id
  tags        = local.tags
}

resource "aws_vpc_security_group_ingress_rule" "callers" {
  for_each = toset(var.caller_security_group_ids)

  security_group_id            = aws_security_group.balancer.id
  description                  = "Callers"
  referenced_security_group_id = each.value
  ip_protocol                  = "tcp"
  from_port                    = 443
  to_port                      = 443
}

resource "aws_vpc_security_group_egress_rule" "nodes" {
  for_each = toset(["8080", "9090"])

  security_group_id            = aws_security_group.balancer.id
  description                  = "The API and the health of the nodes"
  referenced_security_group_id = module.coordsvc.service_security_group_id
  ip_protocol                  = "tcp"
  from_port                    = each.value
  to_port                      = each.value
}

resource "aws_lb" "this" {
  #checkov:skip=CKV_AWS_91:the nodes count every request
  name                       = local.name
  internal                   = true
  load_balancer_type         = "application"
  security_groups            = [aws_security_group.balancer.id]
  subnets                    = var.private_subnet_ids
  drop_invalid_header_fields = true
  enable_deletion_protection = true
  idle_timeout               = 75 # a caller may wait 60 s for a lease
  tags                       = local.tags
}

resource "aws_lb_target_group" "nodes" {
  name                 = local.name
  port                 = 8080
  protocol             = "HTTP"
  target_type          = "ip"
  vpc_id               = var.vpc_id
  deregistration_delay = 30
  tags                 = local.tags

  health_check {
    path                = "/readyz"
    port                = "9090"
    interval            = 5
    timeout             = 3
    healthy_threshold   = 2
    unhealthy_threshold = 2
  }
}

resource "aws_lb_listener" "https" {
  load_balancer_arn = aws_lb.this.arn
  port              = 443
  protocol          = "HTTPS"
  ssl_policy        = "ELBSecurityPolicy-TLS13-1-2-2021-06"
  certificate_arn   = var.certificate_arn
  tags              = local.tags

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.nodes.arn
  }
}

output "address" {
  description = "The load balancer's name in DNS."
  value       = aws_lb.this.dns_name
}
