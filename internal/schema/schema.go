// Package schema decides which DynamoDB tables there are: what coordsvc tables create
// makes, serve looks for and Terraform's module is compared with.
package schema

import (
	"github.com/coordsvc/coordsvc/fencing/dynamofence"
	"github.com/coordsvc/coordsvc/idempotency/dynamoidempotency"
	"github.com/coordsvc/coordsvc/internal/audit/dynamoaudit"
	"github.com/coordsvc/coordsvc/internal/auth/dynamoauth"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/lease/dynamolease"
	"github.com/coordsvc/coordsvc/quota/dynamoquota"
	"github.com/coordsvc/coordsvc/session/dynamosession"
)

// Tables are all that this version uses.
func Tables(prefix string) []dynamo.Table {
	one := []dynamo.Table{dynamolease.Table(prefix), dynamofence.Table(prefix), dynamoauth.Table(prefix), dynamoaudit.Table(prefix), dynamosession.Table(prefix), dynamoidempotency.Table(prefix)}
	return append(one, dynamoquota.Tables(prefix)...)
}
