package app

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
)

func TestRenewalsAreOrderedAtMostOnceASecond(t *testing.T) {
	renewed := 0
	clock := testkit.NewClock(time.Unix(0, 0))
	h := renewals(func() { renewed++ }, clock)
	for i, step := range []struct {
		after         time.Duration
		code, renewed int
	}{{0, http.StatusOK, 1}, {0, http.StatusTooManyRequests, 1}, {renewEvery - 1, http.StatusTooManyRequests, 1}, {1, http.StatusOK, 2}} {
		clock.Advance(step.after)
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/renew", http.NoBody)); w.Code != step.code || renewed != step.renewed {
			t.Errorf("order %d: %d, %d renewals", i, w.Code, renewed)
		}
	}
}
