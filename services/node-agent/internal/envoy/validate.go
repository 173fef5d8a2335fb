package envoy

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// validateTimeout bounds a validation, which takes a tenth of a second on an idle machine.
const validateTimeout = 30 * time.Second

// verdict ends what Envoy prints about a bootstrap that it accepts.
const verdict = "' OK\n"

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
	// Envoy 1.40 crashes after its verdict if the bootstrap has a shared stats scope (stats_scope.sharing_name).
	if err == nil || reasonOf(err, 0, 0) == Crashed && bytes.Contains(out, []byte(verdict)) {
		return nil
	}
	text := strings.TrimSpace(string(out))
	return fmt.Errorf("Envoy refuses the bootstrap: %w: %s", err, text[max(0, len(text)-maxReason):]) //nolint:staticcheck // a name
}
