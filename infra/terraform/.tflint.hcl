# The rules for any Terraform; those of the AWS provider's plugin would have to be fetched.
plugin "terraform" {
  enabled = true
  preset  = "all"
}

# One file per concern instead of main.tf, variables.tf and outputs.tf.
rule "terraform_standard_module_structure" {
  enabled = false
}

# An example pins the provider that the module uses.
rule "terraform_unused_required_providers" {
  enabled = false
}
