package status

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestReady(t *testing.T) {
	for _, tc := range []struct {
		err  error
		code int
		body string
	}{
		{nil, http.StatusOK, "ready\n"},
		{errors.New("no certificate yet"), http.StatusServiceUnavailable, "not ready: no certificate yet\n"},
	} {
		w := httptest.NewRecorder()
		Ready(func(context.Context) error { return tc.err }).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz/ready", nil))
		if w.Code != tc.code || w.Body.String() != tc.body {
			t.Errorf("%v: %d %q", tc.err, w.Code, w.Body)
		}
	}
}
