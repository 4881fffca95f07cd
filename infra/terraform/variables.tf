variable "table_prefix" {
  description = "What the tables' names begin with. The service's COORD_TABLE_PREFIX must be the same."
  type        = string
  default     = "coord_"
  nullable    = false

  validation {
    condition     = can(regex("^[A-Za-z0-9_.-]{1,200}$", var.table_prefix))
    error_message = "A table prefix has 1 to 200 characters of A-Z a-z 0-9 _ . and -."
  }
}

variable "billing_mode" {
  description = "PAY_PER_REQUEST, or PROVISIONED with read_capacity and write_capacity."
  type        = string
  default     = "PAY_PER_REQUEST"
  nullable    = false

  validation {
    condition     = contains(["PAY_PER_REQUEST", "PROVISIONED"], var.billing_mode)
    error_message = "The billing mode is PAY_PER_REQUEST or PROVISIONED."
  }
}

variable "read_capacity" {
  description = "Read units per second of each table and index. Only used with billing_mode PROVISIONED."
  type        = number
  default     = 25
  nullable    = false

  validation {
    condition     = var.read_capacity >= 1 && floor(var.read_capacity) == var.read_capacity
    error_message = "The read capacity is a whole number of at least 1."
  }
}

variable "write_capacity" {
  description = "Write units per second of each table and index. Only used with billing_mode PROVISIONED."
  type        = number
  default     = 25
  nullable    = false

  validation {
    condition     = var.write_capacity >= 1 && floor(var.write_capacity) == var.write_capacity
    error_message = "The write capacity is a whole number of at least 1."
  }
}

variable "kms_key_arn" {
  description = "ARN of the KMS key that encrypts the tables. null: the AWS managed key aws/dynamodb."
  type        = string
  default     = null

  validation {
    condition     = var.kms_key_arn == null || can(regex("^arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]+$", var.kms_key_arn))
    error_message = "The KMS key is named by the ARN of a key, not by an alias or an id."
  }
}

variable "deletion_protection" {
  description = "Whether DynamoDB refuses to delete the tables. Fencing tokens would begin again at 1."
  type        = bool
  default     = true
  nullable    = false
}

variable "tags" {
  description = "Tags of every table."
  type        = map(string)
  default     = {}
  nullable    = false
}
