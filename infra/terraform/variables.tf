variable "name" {
  description = "What security groups, Valkey, the IAM policy and the WAF are called."
  type        = string
  default     = "coordsvc"
  nullable    = false

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,28}[a-z0-9]$", var.name)) && !strcontains(var.name, "--")
    error_message = "A name has 2 to 30 characters of a-z 0-9 and -, begins with a letter, ends with no hyphen and has no two in a row."
  }
}

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
  description = "Read units per second that each table begins with and keeps at least. Only used with billing_mode PROVISIONED."
  type        = number
  default     = 25
  nullable    = false

  validation {
    condition     = var.read_capacity >= 1 && floor(var.read_capacity) == var.read_capacity
    error_message = "The read capacity is a whole number of at least 1."
  }
}

variable "write_capacity" {
  description = "Write units per second that each table begins with and keeps at least. Only used with billing_mode PROVISIONED."
  type        = number
  default     = 25
  nullable    = false

  validation {
    condition     = var.write_capacity >= 1 && floor(var.write_capacity) == var.write_capacity
    error_message = "The write capacity is a whole number of at least 1."
  }
}

variable "read_capacity_max" {
  description = "Read units per second that each table may grow to, and that each index has. Only used with billing_mode PROVISIONED."
  type        = number
  default     = 1000
  nullable    = false

  validation {
    condition     = var.read_capacity_max >= 1 && floor(var.read_capacity_max) == var.read_capacity_max
    error_message = "The largest read capacity is a whole number of at least 1."
  }
}

variable "write_capacity_max" {
  description = "Write units per second that each table may grow to, and that each index has. Only used with billing_mode PROVISIONED."
  type        = number
  default     = 1000
  nullable    = false

  validation {
    condition     = var.write_capacity_max >= 1 && floor(var.write_capacity_max) == var.write_capacity_max
    error_message = "The largest write capacity is a whole number of at least 1."
  }
}

variable "capacity_target" {
  description = "Percentage of a table's capacity that autoscaling aims at. Only used with billing_mode PROVISIONED."
  type        = number
  default     = 60
  nullable    = false

  validation {
    condition     = var.capacity_target >= 20 && var.capacity_target <= 90
    error_message = "DynamoDB takes a target of 20 to 90 percent."
  }
}

variable "kms_key_arn" {
  description = "ARN of the KMS key that encrypts the tables and Valkey. null: the keys that AWS manages."
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
  description = "Tags of everything."
  type        = map(string)
  default     = {}
  nullable    = false
}

variable "vpc_id" {
  description = "The VPC of the nodes and of Valkey. null: no security groups and no Valkey."
  type        = string
  default     = null

  validation {
    condition     = var.vpc_id == null || can(regex("^vpc-[0-9a-f]+$", var.vpc_id))
    error_message = "A VPC is named by its id, vpc-…"
  }
}

variable "caller_security_group_ids" {
  description = "Security groups that may call the API, port 8080."
  type        = list(string)
  default     = []
  nullable    = false

  validation {
    condition     = alltrue([for id in var.caller_security_group_ids : can(regex("^sg-[0-9a-f]+$", id))])
    error_message = "A security group is named by its id, sg-…"
  }
}

variable "ops_security_group_ids" {
  description = "Security groups that may read health and metrics, port 9090."
  type        = list(string)
  default     = []
  nullable    = false

  validation {
    condition     = alltrue([for id in var.ops_security_group_ids : can(regex("^sg-[0-9a-f]+$", id))])
    error_message = "A security group is named by its id, sg-…"
  }
}

variable "envoy_security_group_ids" {
  description = "Security groups of the Envoys that may ask for rate limits over gRPC, port 9091."
  type        = list(string)
  default     = []
  nullable    = false

  validation {
    condition     = alltrue([for id in var.envoy_security_group_ids : can(regex("^sg-[0-9a-f]+$", id))])
    error_message = "A security group is named by its id, sg-…"
  }
}

variable "valkey_subnet_ids" {
  description = "Subnets of Valkey, in two availability zones or more. Empty: no Valkey, limits are then counted per process and sessions are read from DynamoDB."
  type        = list(string)
  default     = []
  nullable    = false

  validation {
    condition     = length(var.valkey_subnet_ids) != 1 && alltrue([for id in var.valkey_subnet_ids : can(regex("^subnet-[0-9a-f]+$", id))])
    error_message = "Subnets are named by their ids, subnet-…, none or at least two."
  }
}

variable "valkey_auth_token" {
  description = "The password of Valkey; required with valkey_subnet_ids."
  type        = string
  default     = null
  sensitive   = true

  validation {
    condition     = var.valkey_auth_token == null || can(regex("^[A-Za-z0-9!&#$^<>-]{16,128}$", var.valkey_auth_token))
    error_message = "A password has 16 to 128 letters, digits and characters of ! & # $ ^ < > -"
  }
}

variable "valkey_version" {
  description = "Version of Valkey, with a parameter group of the family valkey8."
  type        = string
  default     = "8.0"
  nullable    = false

  validation {
    condition     = can(regex("^8\\.[0-9]+$", var.valkey_version))
    error_message = "The version is 8 and a minor one, for example 8.0."
  }
}

variable "valkey_node_type" {
  description = "Node type of Valkey."
  type        = string
  default     = "cache.t4g.small"
  nullable    = false

  validation {
    condition     = can(regex("^cache\\.[a-z0-9]+\\.[a-z0-9]+$", var.valkey_node_type))
    error_message = "A node type is of the form cache.t4g.small."
  }
}

variable "valkey_shards" {
  description = "Shards of Valkey. More than 1 is cluster mode."
  type        = number
  default     = 1
  nullable    = false

  validation {
    condition     = var.valkey_shards >= 1 && var.valkey_shards <= 500 && floor(var.valkey_shards) == var.valkey_shards
    error_message = "There are 1 to 500 shards."
  }
}

variable "valkey_replicas" {
  description = "Replicas of each shard, in other availability zones."
  type        = number
  default     = 1
  nullable    = false

  validation {
    condition     = var.valkey_replicas >= 1 && var.valkey_replicas <= 5 && floor(var.valkey_replicas) == var.valkey_replicas
    error_message = "A shard has 1 to 5 replicas: without one nothing takes over."
  }
}

variable "valkey_maintenance_window" {
  description = "When AWS may work on Valkey, in UTC."
  type        = string
  default     = "sun:04:00-sun:05:00"
  nullable    = false

  validation {
    condition     = can(regex("^(mon|tue|wed|thu|fri|sat|sun):[0-2][0-9]:[0-5][0-9]-(mon|tue|wed|thu|fri|sat|sun):[0-2][0-9]:[0-5][0-9]$", var.valkey_maintenance_window))
    error_message = "A window is of the form sun:04:00-sun:05:00."
  }
}

variable "alarms" {
  description = "Whether CloudWatch alarms are made."
  type        = bool
  default     = true
  nullable    = false
}

variable "alarm_topic_arns" {
  description = "SNS topics that alarms go to."
  type        = list(string)
  default     = []
  nullable    = false

  validation {
    condition     = alltrue([for arn in var.alarm_topic_arns : can(regex("^arn:aws[a-z-]*:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_.-]+$", arn))])
    error_message = "A topic is named by its ARN."
  }
}

variable "waf_rate_limit" {
  description = "Requests from one address in 5 minutes, above which the WAF answers 429. null: no WAF."
  type        = number
  default     = null

  validation {
    condition     = var.waf_rate_limit == null ? true : var.waf_rate_limit >= 10 && var.waf_rate_limit <= 2000000000
    error_message = "AWS takes 10 to 2,000,000,000 requests."
  }
}

variable "waf_load_balancer_arn" {
  description = "ARN of the application load balancer that the WAF stands before. null: associate web_acl_arn yourself."
  type        = string
  default     = null

  validation {
    condition     = var.waf_load_balancer_arn == null || can(regex("^arn:aws[a-z-]*:elasticloadbalancing:[a-z0-9-]+:[0-9]{12}:loadbalancer/app/", var.waf_load_balancer_arn))
    error_message = "An application load balancer is named by its ARN."
  }
}
