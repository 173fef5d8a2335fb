package contract_test

import (
	"strings"
	"testing"

	"fairlead.dev/proto/fairlead/contract"
)

func TestGatewayNameValue(t *testing.T) {
	if got := contract.GatewayNameValue("web"); got != "web" {
		t.Errorf("a short name becomes %q", got)
	}
	long := strings.Repeat("a", 100)
	got, other := contract.GatewayNameValue(long), contract.GatewayNameValue(long+"b")
	if len(got) > 63 || !strings.HasPrefix(got, "aaaa") || got == other {
		t.Errorf("long names become %q and %q", got, other)
	}
}
