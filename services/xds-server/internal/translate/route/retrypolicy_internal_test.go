package route

import (
	"math"
	"testing"
)

// TestARetryFindsTheOtherHost: of two hosts LEAST_REQUEST draws two at random, and so takes the one that has just
// failed, and has fewer requests, three times of four.
func TestARetryFindsTheOtherHost(t *testing.T) {
	attempts := retryPolicy(nil, false).GetHostSelectionRetryMaxAttempts()
	if missed := math.Pow(0.75, float64(attempts+1)); missed > 1e-3 {
		t.Errorf("with %d attempts a retry goes to the host that failed in %.3f of all", attempts, missed)
	}
}
