# The tables and the policy for nodes that run wherever you run them: attach policy_arn to
# their role, and start them with COORD_DYNAMODB=aws.

terraform {
  required_version = ">= 1.5.0"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 6.36.0, < 7.0.0"
    }
  }
}

module "coordsvc" {
  source = "../.."
}

output "policy_arn" {
  description = "What the nodes' role needs."
  value       = module.coordsvc.policy_arn
}
