resource "aws_ecs_cluster" "this" {
  name = local.name
  tags = local.tags

  setting {
    name  = "containerInsights"
    value = "enabled"
  }
}

resource "aws_cloudwatch_log_group" "this" {
  #checkov:skip=CKV_AWS_158:the log holds no secret; name a key of your own
  name              = "/${local.name}"
  retention_in_days = 400 # as long as the log of events
  tags              = local.tags
}

data "aws_iam_policy_document" "tasks" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["ecs-tasks.amazonaws.com"]
    }
  }
}

# The node's own role: its tables, and nothing else.
resource "aws_iam_role" "node" {
  name               = "${local.name}-node"
  assume_role_policy = data.aws_iam_policy_document.tasks.json
  tags               = local.tags
}

resource "aws_iam_role_policy_attachment" "node" {
  role       = aws_iam_role.node.name
  policy_arn = module.coordsvc.policy_arn
}

# What starts a node: its image, its log, its secrets.
resource "aws_iam_role" "start" {
  name               = "${local.name}-start"
  assume_role_policy = data.aws_iam_policy_document.tasks.json
  tags               = local.tags
}

resource "aws_iam_role_policy_attachment" "start" {
  role       = aws_iam_role.start.name
  policy_arn = "arn:aws:iam::aws:policy/service-role/AmazonECSTaskExecutionRolePolicy"
}

data "aws_iam_policy_document" "secrets" {
  statement {
    actions   = ["secretsmanager:GetSecretValue"]
    resources = [aws_secretsmanager_secret.redis_url.arn, var.keys_secret_arn, var.bootstrap_secret_arn]
  }
}

resource "aws_iam_role_policy" "secrets" {
  name   = "secrets"
  role   = aws_iam_role.start.id
  policy = data.aws_iam_policy_document.secrets.json
}

resource "aws_ecs_task_definition" "node" {
  family                   = local.name
  requires_compatibilities = ["FARGATE"]
  network_mode             = "awsvpc"
  cpu                      = 1024
  memory                   = 2048
  task_role_arn            = aws_iam_role.node.arn
  execution_role_arn       = aws_iam_role.start.arn
  tags                     = local.tags

  runtime_platform {
    operating_system_family = "LINUX"
    cpu_architecture        = "ARM64"
  }

  volume {
    name = "keys"
  }

  container_definitions = jsonencode([
    {
      # The service reads its keys from files, and ECS hands secrets to the environment.
      name        = "keys"
      image       = "public.ecr.aws/docker/library/busybox:1.37.0"
      essential   = false
      command     = ["sh", "-c", "umask 022; printf '%s\\n' \"$KEYS\" > /keys/keys; printf '%s\\n' \"$BOOTSTRAP\" > /keys/bootstrap"]
      mountPoints = [{ sourceVolume = "keys", containerPath = "/keys" }]
      secrets = [
        { name = "KEYS", valueFrom = var.keys_secret_arn },
        { name = "BOOTSTRAP", valueFrom = var.bootstrap_secret_arn },
      ]
      logConfiguration = {
        logDriver = "awslogs"
        options   = { "awslogs-group" = aws_cloudwatch_log_group.this.name, "awslogs-region" = data.aws_region.current.region, "awslogs-stream-prefix" = "keys" }
      }
    },
    {
      name                   = "coordsvc"
      image                  = var.image
      essential              = true
      command                = ["serve"]
      readonlyRootFilesystem = true
      stopTimeout            = 30 # it drains for at most 20 s
      dependsOn              = [{ containerName = "keys", condition = "SUCCESS" }]
      healthCheck            = { command = ["CMD", "/coordsvc", "healthcheck"], interval = 10, timeout = 5, retries = 3, startPeriod = 10 }
      mountPoints            = [{ sourceVolume = "keys", containerPath = "/keys", readOnly = true }]
      portMappings           = [{ containerPort = 8080 }, { containerPort = 9090 }, { containerPort = 9091 }]
      environment = [
        { name = "COORD_DYNAMODB", value = "aws" },
        { name = "COORD_OPS_ADDR", value = ":9090" },
        { name = "COORD_GRPC_ADDR", value = ":9091" },
        { name = "COORD_KEYS_FILE", value = "/keys/keys" },
        { name = "COORD_BOOTSTRAP_KEY_FILE", value = "/keys/bootstrap" },
        { name = "COORD_REDIS_PREFIX", value = "coord:" },
      ]
      secrets = [{ name = "COORD_REDIS_URL", valueFrom = aws_secretsmanager_secret.redis_url.arn }]
      logConfiguration = {
        logDriver = "awslogs"
        options   = { "awslogs-group" = aws_cloudwatch_log_group.this.name, "awslogs-region" = data.aws_region.current.region, "awslogs-stream-prefix" = "node" }
      }
    },
  ])
}

resource "aws_ecs_service" "nodes" {
  name                               = local.name
  cluster                            = aws_ecs_cluster.this.id
  task_definition                    = aws_ecs_task_definition.node.arn
  desired_count                      = var.nodes
  launch_type                        = "FARGATE"
  deployment_minimum_healthy_percent = 100
  deployment_maximum_percent         = 200
  health_check_grace_period_seconds  = 30
  wait_for_steady_state              = true
  tags                               = local.tags

  deployment_circuit_breaker {
    enable   = true
    rollback = true
  }

  network_configuration {
    subnets         = var.private_subnet_ids
    security_groups = [module.coordsvc.service_security_group_id]
  }

  load_balancer {
    target_group_arn = aws_lb_target_group.nodes.arn
    container_name   = "coordsvc"
    container_port   = 8080
  }

  service_registries {
    registry_arn = aws_service_discovery_service.nodes.arn
  }

  depends_on = [aws_lb_listener.https, aws_secretsmanager_secret_version.redis_url]
}
