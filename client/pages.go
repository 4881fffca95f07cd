package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/url"
)

// pages reads a list, each page when it is wanted and as a call of its own. A page may
// have nothing, and others behind it. of takes a page apart into what it lists and the cursor of the next.
func pages[Page, Item any](ctx context.Context, c *Client, r call, of func(Page) ([]Item, string)) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		r, query := r, url.Values{} // of this time: whoever ranges again begins anew
		maps.Copy(query, r.query)
		r.query = query
		for {
			var page Page
			if _, err := c.do(ctx, r, &page); err != nil {
				failed[Item](err)(yield)
				return
			}
			items, next := of(page)
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			switch next {
			case "":
				return
			case query.Get("cursor"): // a cache that does not look at the query would have the list go on without end
				err := &NoAnswerError{Sent: true, Err: errors.New("the next page's cursor is that of this page, which is not the contract's")}
				failed[Item](fmt.Errorf("%s %s: %w", r.method, r.route, err))(yield)
				return
			}
			query.Set("cursor", next)
		}
	}
}

// failed is a list that could not be read.
func failed[Item any](err error) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		var none Item
		yield(none, err)
	}
}
