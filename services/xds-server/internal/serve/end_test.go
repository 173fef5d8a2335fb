package serve_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"google.golang.org/grpc/codes"

	"fairlead.dev/services/xds-server/internal/serve"
)

// TestHalfClosedClientIsAnswered sends a request and says at once that there are no more.
func TestHalfClosedClientIsAnswered(t *testing.T) {
	r := startQuiet(t, basicMesh()...)
	for i := range 50 {
		c := r.delta(fmt.Sprint("delta-", i), "default")
		c.subscribe(cds)
		w := r.sotw(fmt.Sprint("sotw-", i), "default")
		w.subscribe(cds)
		if err := errors.Join(c.stream.CloseSend(), w.stream.CloseSend()); err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{c.ended(), w.ended()} {
			if !errors.Is(err, io.EOF) {
				t.Fatalf("a stream ended with %v", err)
			}
		}
		c.expect(cds, "+80|"+hostA, "+80|"+hostB)
		w.expect(cds, "80|"+hostA, "80|"+hostB)
	}
	c := r.delta("refused", "default")
	c.subscribe("")
	if err := c.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	c.endsWith(codes.InvalidArgument)
	if err := r.quiet(); err != nil {
		t.Error(err)
	}
}

func TestReasonOfAnEndGoesBeforeWhatItCauses(t *testing.T) {
	banned, other := errors.New("banned"), errors.New("other")
	for _, c := range []struct{ end, err, want error }{{banned, other, banned}, {banned, nil, banned}, {nil, other, other}, {nil, nil, nil}} {
		if got := serve.EndStatus(c.end, c.err); !errors.Is(got, c.want) {
			t.Errorf("end(%v), then %v: %v", c.end, c.err, got)
		}
	}
}
