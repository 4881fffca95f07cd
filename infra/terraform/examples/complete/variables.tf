variable "image" {
  description = "The service's image, with a tag that does not move."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[^:]+(:[0-9]+)?/.+(:[^:]+|@sha256:[0-9a-f]{64})$", var.image)) && !can(regex(":latest$", var.image))
    error_message = "An image is named with its registry and a tag other than latest, or a digest."
  }
}

variable "vpc_id" {
  description = "The VPC of everything."
  type        = string
  nullable    = false
}

variable "private_subnet_ids" {
  description = "Private subnets in two availability zones or more, from which AWS' APIs and the image's registry can be reached."
  type        = list(string)
  nullable    = false
}

variable "caller_security_group_ids" {
  description = "Security groups of those who call the service."
  type        = list(string)
  nullable    = false
}

variable "envoy_security_group_ids" {
  description = "Security groups of the Envoys that ask for rate limits."
  type        = list(string)
  default     = []
  nullable    = false
}

variable "keys_secret_arn" {
  description = "Secrets Manager secret that holds the keys file: a line \"route <base64 of 32 bytes>\" and a line \"seal <base64 of 32 bytes>\"."
  type        = string
  nullable    = false
}

variable "bootstrap_secret_arn" {
  description = "Secrets Manager secret that holds the first API key: one csk_ line."
  type        = string
  nullable    = false
}

variable "certificate_arn" {
  description = "ACM certificate of the load balancer's name."
  type        = string
  nullable    = false
}

variable "nodes" {
  description = "How many nodes run."
  type        = number
  default     = 3
  nullable    = false

  validation {
    condition     = var.nodes >= 2 && floor(var.nodes) == var.nodes
    error_message = "Run at least two nodes: one may be replaced at any time."
  }
}
