package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	collectortrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"fairlead.dev/pkg/telemetry"
	"fairlead.dev/pkg/testkit"
)

func TestLogger(t *testing.T) {
	var out bytes.Buffer
	log, err := telemetry.NewLogger(&out, "warn", "ca")
	if err != nil {
		t.Fatal(err)
	}
	log.Info("not shown")
	log.Warn("shown", "n", 1)
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("not one JSON line: %v: %q", err, out.String())
	}
	if line["msg"] != "shown" || line["service"] != "ca" || line["level"] != "WARN" {
		t.Errorf("line is %v", line)
	}
	if _, err := telemetry.NewLogger(&out, "loud", "ca"); err == nil || !strings.Contains(err.Error(), "debug, info, warn, error") {
		t.Errorf("wrong level gave %v, want the choices", err)
	}
}

func TestSetupOffByDefault(t *testing.T) {
	tel, err := telemetry.Setup(t.Context(), telemetry.Config{Service: "ca", Version: "1.2.3"})
	if err != nil {
		t.Fatal(err)
	}
	_, span := tel.TracerProvider.Tracer("test").Start(t.Context(), "s")
	if span.IsRecording() {
		t.Error("spans are recorded without an endpoint")
	}
	if err := tel.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if n, err := testutil.GatherAndCount(tel.Registry, "fairlead_build_info", "go_goroutines", "process_open_fds"); err != nil || n != 3 {
		t.Errorf("%d of 3 standard metrics, %v", n, err)
	}
	problems, err := testutil.GatherAndLint(tel.Registry, "fairlead_build_info")
	if err != nil || len(problems) != 0 {
		t.Errorf("metric lint: %v %v", problems, err)
	}
}

type collector struct {
	collectortrace.UnimplementedTraceServiceServer
	got chan *collectortrace.ExportTraceServiceRequest
}

func (c *collector) Export(_ context.Context, r *collectortrace.ExportTraceServiceRequest) (*collectortrace.ExportTraceServiceResponse,
	error) {
	c.got <- r
	return &collectortrace.ExportTraceServiceResponse{}, nil
}

func TestSetupSendsTraces(t *testing.T) {
	c := &collector{got: make(chan *collectortrace.ExportTraceServiceRequest, 1)}
	server := grpc.NewServer()
	collectortrace.RegisterTraceServiceServer(server, c)
	lis := testkit.LoopbackListener(t)
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(server.Stop)

	tel, err := telemetry.Setup(t.Context(), telemetry.Config{
		Service: "ca", OTLPEndpoint: "http://" + lis.Addr().String(), Log: testkit.Logger(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	_, span := tel.TracerProvider.Tracer("test").Start(t.Context(), "issue")
	span.End()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	if err := tel.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	r := <-c.got
	if name := r.GetResourceSpans()[0].GetScopeSpans()[0].GetSpans()[0].GetName(); name != "issue" {
		t.Errorf("span is %q", name)
	}
}

func TestSetupRefusesNonsense(t *testing.T) {
	for _, endpoint := range []string{"ftp://host:1", "http://", "://x"} {
		if _, err := telemetry.Setup(t.Context(), telemetry.Config{Service: "ca", OTLPEndpoint: endpoint}); err == nil {
			t.Errorf("endpoint %q was taken", endpoint)
		}
	}
	if _, err := telemetry.Setup(t.Context(), telemetry.Config{}); err == nil {
		t.Error("a service without a name was taken")
	}
}
