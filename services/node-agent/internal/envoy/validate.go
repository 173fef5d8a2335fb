package envoy

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// validateTimeout bounds a validation, which takes a tenth of a second on an idle machine.
const validateTimeout = 30 * time.Second

// maxReason is how much of Envoy's log an error repeats.
const maxReason = 1 << 10

// Validate checks with Envoy itself whether it would start with the options. Envoy opens no port and no socket for it.
// Package app calls it for a bootstrap that EnvoyFilters have patched.
func Validate(ctx context.Context, o Options) error {
	ctx, cancel := context.WithTimeout(ctx, validateTimeout)
	defer cancel()
	o.LogLevel, o.ComponentLog = "error", ""
	cmd := exec.CommandContext(ctx, o.Binary, append([]string{"--mode", "validate"}, o.Args()...)...)
	cmd.Dir = o.Dir
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	text := strings.TrimSpace(string(out))
	return fmt.Errorf("Envoy refuses the bootstrap: %w: %s", err, text[max(0, len(text)-maxReason):]) //nolint:staticcheck // a name
}
