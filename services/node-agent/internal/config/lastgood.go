package config

import (
	"fmt"
	"time"
)

const (
	lastGoodMaxAge = "FAIRLEAD_LAST_GOOD_MAX_AGE"
	lastGoodAfter  = "FAIRLEAD_LAST_GOOD_AFTER"

	defaultLastGoodMaxAge = 24 * time.Hour
	// minLastGoodMaxAge leaves time to write: a file is written anew at a quarter of its age.
	minLastGoodMaxAge    = time.Minute
	defaultLastGoodAfter = 5 * time.Second
)

// LastGood says whether the configuration that Envoy has accepted is kept for the next start.
type LastGood struct {
	// MaxAge is the age from which on it is not used; 0 keeps none.
	MaxAge time.Duration
	// After is how long an Envoy without configuration waits for an xds-server before it is answered from what was
	// kept.
	After time.Duration
}

// KeySurvives reports whether the workload's private key is in a file that the next agent reads: only then can the next
// agent open what this one has sealed.
func (c *Config) KeySurvives() bool { return c.CacheCertificate || c.CertificateDir != "" }

func (c *Config) parseLastGood(env *environment) error {
	c.LastGood = LastGood{
		MaxAge: env.duration(lastGoodMaxAge, defaultLastGoodMaxAge),
		After:  env.duration(lastGoodAfter, defaultLastGoodAfter),
	}
	if age := c.LastGood.MaxAge; age < minLastGoodMaxAge && age != 0 {
		return fmt.Errorf("%s %s: want %s or more, or 0, which keeps no configuration", lastGoodMaxAge, age, minLastGoodMaxAge)
	}
	if c.LastGood.After < 0 || c.LastGood.After > time.Hour {
		return fmt.Errorf("%s %s: want 0s to 1h", lastGoodAfter, c.LastGood.After)
	}
	return nil
}
