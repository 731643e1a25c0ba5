// node llama_cpp.mjs MODEL PROMPT_TOKENS DECODE_TOKENS REPEATS THREADS
// llama.cpp's prefill and decode times on the CPU, as one line of JSON:
// {"prefill_ms": [...], "decode_ms": [...], "decoded": tokens behind each decode time, "build": "..."}
import {getLlama} from "node-llama-cpp";

const [model_path, ...numbers] = process.argv.slice(2);
const [prompt_tokens, decode_tokens, repeats, threads] = numbers.map(Number);

const llama = await getLlama({gpu: false, build: "never", progressLogs: false, logLevel: "error", maxThreads: threads});
const model = await llama.loadModel({modelPath: model_path});
const context = await model.createContext({
    contextSize: prompt_tokens + decode_tokens + 8,
    batchSize: prompt_tokens,
    threads: {ideal: threads, min: threads}
});
const sequence = context.getSequence();

// ordinary text, so that the model goes on writing instead of ending its turn
const text = "The quick brown fox jumps over the lazy dog, and then it tells a long story. ";
const prompt = model.tokenize(text.repeat(Math.ceil(prompt_tokens / 8))).slice(0, prompt_tokens);

const prefill_ms = [], decode_ms = [];
for (let repeat = 0; repeat < repeats + 1; repeat++) {
    await sequence.clearHistory();
    const begin = performance.now();
    let first = 0, last = 0, count = 0;
    for await (const _ of sequence.evaluate(prompt, {temperature: 0, yieldEogToken: true})) {
        last = performance.now();
        if (count === 0) first = last;
        count += 1;
        if (count === decode_tokens) break;
    }
    if (repeat === 0) continue; // the first run warms up
    if (count !== decode_tokens) throw new Error(`the model ended after ${count} tokens`);
    prefill_ms.push(first - begin);
    decode_ms.push(last - first);
}
console.log(JSON.stringify({prefill_ms, decode_ms, decoded: decode_tokens - 1, build: llama.systemInfo}));
process.exit(0);
