package config

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestLastGood(t *testing.T) {
	parse := func(cache bool, env ...string) (*Config, error) {
		return Parse("sidecar", Flags{StateDir: t.TempDir(), RootCertFile: "root", EnvoyBinary: "envoy", Cache: cache}, Host{
			Environ: append([]string{"POD_NAME=web-0", "POD_NAMESPACE=shop", "INSTANCE_IP=10.0.0.1"}, env...), ReadFile: os.ReadFile,
			OpenFiles: 1000,
		})
	}
	for _, tc := range []struct {
		name  string
		cache bool
		env   []string
		want  LastGood
		keeps bool
	}{
		{"defaults", false, nil, LastGood{24 * time.Hour, 5 * time.Second}, false},
		{"the key is cached", true, nil, LastGood{24 * time.Hour, 5 * time.Second}, true},
		{"the key is written", false, []string{"OUTPUT_CERTS=/certs"}, LastGood{24 * time.Hour, 5 * time.Second}, true},
		{"as set", true, []string{lastGoodMaxAge + "=1h", lastGoodAfter + "=0s"}, LastGood{time.Hour, 0}, true},
		{"off", true, []string{lastGoodMaxAge + "=0"}, LastGood{0, 5 * time.Second}, true},
	} {
		c, err := parse(tc.cache, tc.env...)
		if err != nil || c.LastGood != tc.want || c.KeySurvives() != tc.keeps {
			t.Errorf("%s: %+v, %v", tc.name, c, err)
		}
	}
	for _, env := range []string{lastGoodMaxAge + "=-1s", lastGoodMaxAge + "=day", lastGoodMaxAge + "=1ns", lastGoodMaxAge + "=59s",
		lastGoodAfter + "=-1s", lastGoodAfter + "=2h"} {
		name, _, _ := strings.Cut(env, "=")
		if _, err := parse(true, env); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", env, err)
		}
	}
}
