package format

// Token says what a JSON Web Token of the scenario is like.
type Token struct {
	Issuer    string         `json:"issuer"`
	Subject   string         `json:"subject"`
	Audiences []string       `json:"audiences"`
	Claims    map[string]any `json:"claims"`
	// Key is the name of what signs it, DefaultKey if empty, and Alg how, RS256 if empty.
	Key string `json:"key"`
	Alg string `json:"alg"`
	// Expired and Future are tokens whose time is over, or has not come.
	Expired bool `json:"expired"`
	Future  bool `json:"future"`
}

// DefaultKey signs tokens that name no key.
const DefaultKey = "default"

// Algorithms of tokens. HS256 has the PEM of the public key for its secret, and Unsigned no signature.
const (
	RS256    = "RS256"
	ES256    = "ES256"
	HS256    = "HS256"
	Unsigned = "none"
)
