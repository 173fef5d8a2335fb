package beside_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/scenarios/internal/beside"
	"fairlead.dev/tests/scenarios/internal/format"
)

// serve serves an application over HTTP/1 and HTTP/2 with prior knowledge, as the echo application's ports do.
func serve(t *testing.T, app string, into *beside.Collected) string {
	t.Helper()
	lis := testkit.LoopbackListener(t)
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	srv := &http.Server{Handler: beside.New(app, into), Protocols: &protocols, ReadHeaderTimeout: time.Minute}
	go func() { _ = srv.Serve(lis) }()
	t.Cleanup(func() { srv.Close() })
	return lis.Addr().String()
}

func dial(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestHTTPAuthorization(t *testing.T) {
	h := beside.New(format.AppExtAuthzHTTP, nil)
	for _, test := range []struct {
		ask, result, body string
		code              int
		least             time.Duration
	}{
		{"allow", "allowed", "", 200, 0}, {"", "denied", "denied by ext_authz", 403, 0},
		{"slow", "denied", "denied by ext_authz", 403, 2 * time.Second},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/a?b=c", strings.NewReader("12345"))
		r.Header.Set("X-Ext-Authz", test.ask)
		w := httptest.NewRecorder()
		began := time.Now()
		h.ServeHTTP(w, r)
		if got := w.Header(); w.Code != test.code || got.Get("X-Ext-Authz-Check-Result") != test.result || w.Body.String() != test.body ||
			got.Get("X-Ext-Authz-Check-Received") != "POST /a?b=c 5" || time.Since(began) < test.least {
			t.Errorf("%q: %d, %v, %q after %s", test.ask, w.Code, got, w.Body, time.Since(began))
		}
	}
}

func TestGRPCAuthorization(t *testing.T) {
	client := authv3.NewAuthorizationClient(dial(t, serve(t, format.AppExtAuthzGRPC, nil)))
	list := &corev3.HeaderMap{Headers: []*corev3.HeaderValue{{Key: "x-ext-authz", RawValue: []byte("allow")}}}
	for name, test := range map[string]struct {
		request *authv3.AttributeContext_HttpRequest
		code    codes.Code
	}{
		"allowed":             {&authv3.AttributeContext_HttpRequest{Headers: map[string]string{"x-ext-authz": "allow"}}, codes.OK},
		"allowed by raw list": {&authv3.AttributeContext_HttpRequest{HeaderMap: list}, codes.OK},
		"denied":              {&authv3.AttributeContext_HttpRequest{Headers: map[string]string{"x-ext-authz": "deny"}}, codes.PermissionDenied},
		"TCP":                 {nil, codes.PermissionDenied},
	} {
		if test.request != nil {
			test.request.Method, test.request.Path, test.request.Body = "PUT", "/x", "123"
		}
		got, err := client.Check(t.Context(), &authv3.CheckRequest{Attributes: &authv3.AttributeContext{
			Request: &authv3.AttributeContext_Request{Http: test.request},
		}})
		if err != nil || codes.Code(got.GetStatus().GetCode()) != test.code { //nolint:gosec // a code
			t.Errorf("%s: %v, %v", name, got, err)
			continue
		}
		headers, result, received := got.GetOkResponse().GetHeaders(), "allowed", "PUT /x 3"
		if test.code != codes.OK {
			headers, result = got.GetDeniedResponse().GetHeaders(), "denied"
			if d := got.GetDeniedResponse(); d.GetStatus().GetCode() != 403 || d.GetBody() != "denied by ext_authz" {
				t.Errorf("%s: %v", name, d)
			}
		}
		if test.request == nil {
			received = "  0"
		}
		if len(headers) != 2 || headers[0].GetHeader().GetValue() != result || headers[1].GetHeader().GetValue() != received {
			t.Errorf("%s: headers %v", name, headers)
		}
	}
}

func TestCollected(t *testing.T) {
	var all beside.Collected
	began := time.Now()
	stream, err := accesslogv3.NewAccessLogServiceClient(dial(t, serve(t, format.AppALS, &all))).StreamAccessLogs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	message := &accesslogv3.StreamAccessLogsMessage{Identifier: &accesslogv3.StreamAccessLogsMessage_Identifier{LogName: "a"}}
	for range 2 {
		if err := stream.Send(message); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := stream.CloseAndRecv(); err != nil {
		t.Fatal(err)
	}
	address := serve(t, format.AppZipkin, &all)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/api/v2/spans", strings.NewReader("[]"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	got := all.Since(began)
	if resp.StatusCode != http.StatusAccepted || len(got) != 3 {
		t.Fatalf("status %d, collected %v", resp.StatusCode, got)
	}
	var entry accesslogv3.StreamAccessLogsMessage
	if err := proto.Unmarshal(got[1].Body, &entry); err != nil || entry.GetIdentifier().GetLogName() != "a" ||
		got[1].Path != "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs" || got[1].App != format.AppALS {
		t.Errorf("collected %+v (%v)", got[1], err)
	}
	if got[2].App != format.AppZipkin || string(got[2].Body) != "[]" || len(all.Since(time.Now())) != 0 {
		t.Errorf("collected %+v", got[2])
	}
	if beside.New(format.AppHTTP, &all) != nil {
		t.Error("an echo application is beside itself")
	}
}
