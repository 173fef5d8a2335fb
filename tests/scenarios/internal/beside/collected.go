package beside

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// kept bounds what is remembered, mostBody a message.
	kept     = 20000
	mostBody = 16 << 20
)

// Message is what a proxy has told.
type Message struct {
	// App is the kind of the port, and Path the method of gRPC or the path of HTTP.
	App  string    `json:"app"`
	Path string    `json:"path"`
	Time time.Time `json:"time"`
	Body []byte    `json:"body"`
}

// Collected is what proxies have told the ports of one workload. It is safe for concurrent use.
type Collected struct {
	mu  sync.Mutex
	all []Message
}

func (c *Collected) add(app, path string, body []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.all) >= kept {
		c.all = append(c.all[:0:0], c.all[kept/2:]...)
	}
	c.all = append(c.all, Message{App: app, Path: path, Time: time.Now(), Body: body})
}

// Since has what came at or after a time, in order.
func (c *Collected) Since(from time.Time) []Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.all {
		if !c.all[i].Time.Before(from) {
			return append([]Message(nil), c.all[i:]...)
		}
	}
	return nil
}

// stream takes all messages of a call and answers an empty one, as the services of OpenTelemetry and of Envoy's access
// logs do that have nothing to object.
func (c *Collected) stream(app string, stream grpc.ServerStream) error {
	method, ok := grpc.MethodFromServerStream(stream)
	if !ok {
		return status.Error(codes.Internal, "a call of no method")
	}
	for {
		var raw []byte
		err := stream.RecvMsg(&raw)
		if errors.Is(err, io.EOF) {
			return stream.SendMsg(&[]byte{})
		}
		if err != nil {
			return err
		}
		c.add(app, method, raw)
	}
}

// zipkin is Zipkin's API v2.
func (c *Collected) zipkin(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mostBody))
	if err != nil {
		return // the caller has gone, or told too much
	}
	c.add("ZIPKIN", r.URL.Path, raw)
	w.WriteHeader(http.StatusAccepted)
}
