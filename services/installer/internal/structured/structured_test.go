package structured

import (
	"strings"
	"testing"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

func TestMessagesHaveAllFields(t *testing.T) {
	for as, want := range map[string]string{
		"json": "{\n  \"apiVersion\": \"\",\n  \"kind\": \"Pod\",\n  \"name\": \"\",\n  \"namespace\": \"\"\n}\n",
		"yaml": "apiVersion: \"\"\nkind: Pod\nname: \"\"\nnamespace: \"\"\n",
	} {
		var out strings.Builder
		err := PrintMessage(&out, as, &configv1.ObjectKey{Kind: "Pod"})
		if err != nil || out.String() != want {
			t.Errorf("%s: %q, %v", as, out.String(), err)
		}
	}
}
