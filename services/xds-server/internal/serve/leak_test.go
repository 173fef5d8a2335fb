package serve_test

import (
	"testing"

	"go.uber.org/goleak"
)

func TestNoGoroutineIsLeft(t *testing.T) {
	r := startQuiet(t, basicMesh()...)
	warm := r.delta("warm", "default")
	warm.subscribe(cds, "*")
	warm.next()
	warm.cancel()
	if err := r.quiet(); err != nil {
		t.Fatal(err)
	}
	before := goleak.IgnoreCurrent()
	for i := range 1000 {
		if i%2 == 0 {
			c := r.delta("pod", "default")
			c.subscribe(cds, "*")
			if i%4 == 0 {
				c.ack(c.next())
			}
			c.cancel()
		} else {
			c := r.sotw("pod", "default")
			c.subscribe(cds)
			if i%4 == 1 {
				c.ack(c.next())
			}
			c.cancel()
		}
	}
	if err := r.quiet(); err != nil {
		t.Fatal(err)
	}
	goleak.VerifyNone(t, before)
}
