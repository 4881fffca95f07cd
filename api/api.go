// Package api decides what the service's HTTP interface looks like: the
// contract in openapi.yaml, the types generated from it, and how strictly a
// body is read.
package api

import _ "embed"

//go:generate go run github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2 -config oapi-codegen.yaml openapi.yaml

// Contract is openapi.yaml, as it is served.
//
//go:embed openapi.yaml
var Contract []byte
