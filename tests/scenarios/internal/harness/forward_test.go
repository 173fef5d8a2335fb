package harness

import (
	"context"
	"io"
	"net"
	"testing"

	"fairlead.dev/pkg/testkit"
)

// TestForward: connections of another machine reach a server of this one at the same address, and end with the way.
func TestForward(t *testing.T) {
	at, echoed := testkit.LoopbackListener(t), testkit.FreeAddress(t).String()
	go func() {
		for {
			conn, err := at.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(conn, conn) }()
		}
	}()
	stop, err := forward(at.Addr().String(), func(ctx context.Context, network, _ string) (net.Listener, error) {
		return new(net.ListenConfig).Listen(ctx, network, echoed)
	})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", echoed)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answer := make([]byte, 2)
	if _, err := conn.Write([]byte("hi")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "hi" {
		t.Fatalf("the answer is %q, %v", answer, err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(conn, answer); err == nil {
		t.Error("the connection is still open")
	}
}
