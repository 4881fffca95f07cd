# Envoys speak gRPC to the nodes themselves, at nodes.coordsvc.internal:9091: they balance and
# check health on their own, and the load balancer's WAF would count each of them as one address.

resource "aws_service_discovery_private_dns_namespace" "this" {
  name        = "${local.name}.internal"
  description = "Nodes of coordsvc"
  vpc         = var.vpc_id
  tags        = local.tags
}

resource "aws_service_discovery_service" "nodes" {
  name = "nodes"
  tags = local.tags

  dns_config {
    namespace_id   = aws_service_discovery_private_dns_namespace.this.id
    routing_policy = "MULTIVALUE"

    dns_records {
      type = "A"
      ttl  = 10
    }
  }
}

output "envoy_address" {
  description = "Where Envoys ask for rate limits: every node, by its name in the VPC's DNS."
  value       = "${aws_service_discovery_service.nodes.name}.${aws_service_discovery_private_dns_namespace.this.name}:9091"
}
