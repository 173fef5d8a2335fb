package format

// Metric is by how much counters of a workload must have grown.
type Metric struct {
	At     string             `json:"at"`
	Name   string             `json:"name"`
	Labels map[string]*string `json:"labels"`
	// Increase of all series with these labels together.
	Increase Number `json:"increase"`
}

// AccessLog is what the proxy of a workload must have written.
type AccessLog struct {
	At     string   `json:"at"`
	Lines  *Number  `json:"lines"`
	Has    []string `json:"has"`
	HasNot []string `json:"hasNot"`
}

// Spans are what a collector must have got.
type Spans struct {
	At        string             `json:"at"`
	Count     Number             `json:"count"`
	Name      string             `json:"name"`
	Service   string             `json:"service"`
	Tags      map[string]*string `json:"tags"`
	SameTrace bool               `json:"sameTrace"`
}
