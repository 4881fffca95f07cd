# A coarse outer layer before a load balancer: it sees addresses alone and counts over
# minutes, and keeps a flood from the nodes. Who may do how much is the policies' business.

resource "aws_wafv2_web_acl" "this" {
  #checkov:skip=CKV_AWS_192:nothing here runs on Java
  #checkov:skip=CKV2_AWS_31:what is blocked is in its metric; name a log of your own by web_acl_arn
  count = var.waf_rate_limit == null ? 0 : 1

  name        = var.name
  description = "Too many requests from one address"
  scope       = "REGIONAL"
  tags        = var.tags

  default_action {
    allow {}
  }

  rule {
    name     = "rate"
    priority = 1

    action {
      block {
        custom_response {
          response_code = 429
        }
      }
    }

    statement {
      rate_based_statement {
        limit                 = var.waf_rate_limit
        aggregate_key_type    = "IP"
        evaluation_window_sec = 300
      }
    }

    visibility_config {
      cloudwatch_metrics_enabled = true
      metric_name                = "${var.name}-rate"
      sampled_requests_enabled   = true
    }
  }

  visibility_config {
    cloudwatch_metrics_enabled = true
    metric_name                = var.name
    sampled_requests_enabled   = true
  }
}

resource "aws_wafv2_web_acl_association" "this" {
  count = var.waf_rate_limit == null || var.waf_load_balancer_arn == null ? 0 : 1

  resource_arn = var.waf_load_balancer_arn
  web_acl_arn  = aws_wafv2_web_acl.this[0].arn
}
