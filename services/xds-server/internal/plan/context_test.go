package plan_test

import (
	"context"
	"testing"
)

func newContext(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithCancel(t.Context())
}
