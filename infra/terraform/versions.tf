terraform {
  required_version = ">= 1.5.0"

  required_providers {
    aws = {
      source = "hashicorp/aws"
      # An index takes its keys as key_schema blocks, which older releases do not know.
      version = ">= 6.36.0, < 7.0.0"
    }
  }
}
