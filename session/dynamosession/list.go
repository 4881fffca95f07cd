package dynamosession

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/session"
)

// pageSize is how many sessions one query reads where all, or many dead ones, are to be read.
const pageSize = 1000

// errOlderUser is met where a session shows that the user's record was read before a change.
var errOlderUser = errors.New("dynamosession: the user's record is older than a session's")

// found is a session's record and its id.
type found struct {
	session.Record
	id string
}

// List implements session.Store.
func (s *Store) List(ctx context.Context, op session.ListOp) (session.Page, error) {
	for range maxRounds {
		u, err := s.loadUser(ctx, op.User)
		if err != nil {
			return session.Page{}, fmt.Errorf("list sessions: %w", err)
		}
		page, err := s.page(ctx, u, op)
		if err == nil {
			return page, nil
		}
		if !errors.Is(err, errOlderUser) {
			return session.Page{}, fmt.Errorf("list sessions: %w", err)
		}
	}
	return session.Page{}, fmt.Errorf("list sessions: %w", errContended)
}

func (s *Store) page(ctx context.Context, u session.User, op session.ListOp) (page session.Page, err error) {
	last := ""
	for f, err := range s.sessions(ctx, op.User.Tag, op.After, op.Limit+1) {
		t := session.DurableTracking(f.Idle)
		switch {
		case err != nil:
			return session.Page{}, err
		case f.SessionVersion > u.SessionVersion:
			return session.Page{}, errOlderUser // or a session that a logout-all keeps would be missing
		case session.Judge(u, f.Record, op.User.Tenant, op.Now, t.Slack) != "":
			continue
		case len(page.Sessions) == op.Limit:
			page.Next = last
			return page, nil
		}
		last = f.id
		page.Sessions = append(page.Sessions, f.Session(u, session.Key{Tenant: op.User.Tenant, Tag: op.User.Tag, ID: f.id}, t))
	}
	return page, nil
}

// sessions reads a user's sessions with ids after the one given, in order, strongly
// consistent, at most size in the first request and pageSize in each further one, which
// the dead among them made necessary. It ends with the first error.
func (s *Store) sessions(ctx context.Context, tag, after string, size int) iter.Seq2[found, error] {
	pk, prefix := keytype.Session.ItemKey(tag, "")
	in := &dynamodb.QueryInput{
		TableName:                 &s.table,
		ConsistentRead:            aws.Bool(true),
		KeyConditionExpression:    aws.String("#pk = :pk AND begins_with(#sk, :prefix)"),
		ExpressionAttributeNames:  map[string]string{"#pk": partition, "#sk": sort},
		ExpressionAttributeValues: dynamo.Item{":pk": dynamo.S(pk), ":prefix": dynamo.S(prefix)},
		Limit:                     aws.Int32(int32(size)), //nolint:gosec // at most pageSize
	}
	if after != "" {
		in.ExclusiveStartKey = recordKey(session.Key{Tag: tag, ID: after})
	}
	return func(yield func(found, error) bool) {
		for {
			out, err := s.client.Query(ctx, in)
			if err != nil {
				yield(found{}, dynamo.ReadFault("query", err))
				return
			}
			for _, item := range out.Items {
				f, err := readFound(item, prefix)
				if !yield(f, err) || err != nil {
					return
				}
			}
			if in.ExclusiveStartKey = out.LastEvaluatedKey; len(in.ExclusiveStartKey) == 0 {
				return
			}
			in.Limit = aws.Int32(pageSize)
		}
	}
}

func readFound(item dynamo.Item, prefix string) (found, error) {
	r, err := readRecord(item)
	if err != nil {
		return found{}, fmt.Errorf("%w: %w", keytype.ErrUnavailable, err)
	}
	reader := dynamo.Read(item, format)
	return found{r, strings.TrimPrefix(reader.Str(sort), prefix)}, reader.Err()
}
