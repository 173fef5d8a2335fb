package contract

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"
)

// maxLabel is the longest value of a label.
const maxLabel = 63

// GatewayNameValue is the value of GatewayNameLabel for a Gateway: its name, or if that is too long as much of it as
// fits with a hash of it.
func GatewayNameValue(name string) string {
	if len(name) <= maxLabel {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	end := "-" + strings.ToLower(base32.HexEncoding.EncodeToString(sum[:5]))
	return strings.TrimRight(name[:maxLabel-len(end)], "-.") + end
}
